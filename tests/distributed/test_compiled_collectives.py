"""Collectives inside compiled graphs and captured graphs: one program, the bits of eager mode."""

import compiled_bodies as bodies
import pytest
from ranks import run


@pytest.mark.parametrize(
    "body",
    [
        bodies.reductions,
        bodies.movements,
        bodies.lists,
        bodies.derivatives,
        bodies.in_place,
        bodies.falls_back,
        bodies.dtensor,
        bodies.tensor_parallel_step,
        bodies.captured,
    ],
    ids=lambda body: body.__name__,
)
def test_two_ranks(body):
    run(body, 2)


def test_three_ranks():
    run(bodies.movements, 3)


def test_all_ranks_of_a_mesh_make_one_program():
    run(bodies.mesh, 4)


def test_an_absent_rank_is_an_error_with_the_operations_name():
    run(bodies.absent_rank, 2)


def test_a_disagreement_is_an_error_on_all_ranks():
    run(bodies.mismatch, 2)


def test_over_several_hosts_collectives_run_between_programs():
    run(bodies.several_hosts, 2, group=False)
