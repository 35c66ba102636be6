"""Every op's StableHLO text must parse elsewhere and compute what our evaluator computes.

The modules, their inputs and expected results come from the C++ program hlo_print_samples (built
with NEURON_TESTS=ON); XLA's CPU client reads and runs the text.
"""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("jax", reason="jax is not installed: nothing independent to run StableHLO on")
xla_client = pytest.importorskip("jaxlib.xla_client", reason="jaxlib is not installed")

import xla_runner  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]


def find_program():
    folders = [os.environ.get("NEURON_BUILD_DIR"), *sorted(ROOT.glob("build*"))]
    for folder in filter(None, folders):
        program = pathlib.Path(folder) / "neuron" / "hlo" / "hlo_print_samples"
        if program.exists():
            return program
    return None


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    program = find_program()
    if program is None:
        pytest.skip("hlo_print_samples is not built (NEURON_TESTS=ON; set NEURON_BUILD_DIR)")
    folder = tmp_path_factory.mktemp("samples")
    lines = subprocess.run(
        [program, folder], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    return folder, [line.split() for line in lines]


def check(folder, name, rtol, atol):
    text = (folder / f"{name}.mlir").read_text()
    argument_types, result_types = xla_runner.signature(text)
    inputs = [(folder / f"{name}.in{i}").read_bytes() for i in range(len(argument_types))]
    results = xla_runner.run(text, inputs)
    problems = []
    for i, (got, (shape, dtype)) in enumerate(zip(results, result_types, strict=True)):
        want = np.frombuffer((folder / f"{name}.out{i}").read_bytes(), dtype).reshape(shape)
        problem = xla_runner.difference(got, want, rtol, atol)
        if problem:
            problems.append(f"{name}, result {i}: {problem}")
    return problems


def test_every_op_computes_on_xla_what_the_evaluator_computes(samples):
    folder, rows = samples
    assert len(rows) > 300
    problems = []
    for name, rtol, atol in rows:
        try:
            problems += check(folder, name, float(rtol), float(atol))
        except Exception as error:  # One broken module must not hide the others.
            problems.append(f"{name}: {str(error)[:300]}")
    assert not problems, "\n".join(problems)


def test_collectives_compute_on_xla_what_they_mean(samples):
    """On four devices, in a process of its own: the number of devices is fixed at the start."""
    folder, _ = samples
    script = pathlib.Path(__file__).with_name("run_collectives.py")
    result = subprocess.run(
        [sys.executable, script, folder / "collectives.mlir"], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
