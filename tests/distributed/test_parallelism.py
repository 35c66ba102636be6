"""PyTorch's own ways of training on several ranks, unmodified, give one process's results."""

import parallel_bodies as bodies
import pytest
import torch
from ranks import run


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"bucket_cap_mb": 0.0001},
    ],
    ids=lambda options: next(iter(options), "default"),
)
def test_ddp(options):
    run(bodies.ddp, 2, options)


@pytest.mark.parametrize(
    "body",
    [
        bodies.ddp_unused_parameters,
        bodies.ddp_uneven_inputs,
        bodies.zero_redundancy,
        bodies.sync_batch_norm,
        bodies.fsdp2_mixed_precision,
        bodies.fsdp2_holds_its_share,
        bodies.activation_checkpointing,
        bodies.tensor_parallel,
        bodies.cross_entropy_of_shards,
        bodies.objects,
    ],
    ids=lambda body: body.__name__,
)
def test_two_ranks_equal_one_process(body):
    run(body, 2)


def test_cpu_offload():
    run(bodies.fsdp2_cpu_offload, 2, backend="cpu:gloo,neuron:neuron")


@pytest.mark.parametrize("reshard", [True, False])
def test_fsdp2(reshard):
    run(bodies.fsdp2, 3, {"reshard_after_forward": reshard})


def test_hybrid_sharding():
    run(bodies.fsdp2_hybrid, 4)


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
def test_fsdp1(strategy):
    run(bodies.fsdp1, 2, strategy)


@pytest.mark.parametrize("body", [bodies.dtensor_arithmetic, bodies.dtensor_random_values])
def test_dtensor(body):
    run(body, 3)


@pytest.mark.parametrize(
    ("schedule", "stages_per_rank"),
    [
        ("ScheduleGPipe", 1),
        ("Schedule1F1B", 1),
        ("ScheduleInterleaved1F1B", 2),
        ("ScheduleInterleavedZeroBubble", 2),
    ],
)
def test_pipeline(schedule, stages_per_rank):
    run(bodies.pipeline, 2, schedule, stages_per_rank)


def test_checkpoint_resumes_on_another_number_of_ranks(tmp_path):
    path = str(tmp_path / "checkpoint")
    saved = run(bodies.save_shards, 2, path)
    resumed = run(bodies.resume_from_shards, 3, path)
    for ours, theirs in zip(resumed[0], saved[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_compiled_ddp():
    run(bodies.ddp, 2, {}, True)


def test_compiled_fsdp2():
    run(bodies.fsdp2, 2, {}, True)


def test_compiled_tensor_parallel():
    run(bodies.tensor_parallel, 2, True)


def test_functional_collectives_in_a_graph():
    run(bodies.functional_in_a_graph, 3)
