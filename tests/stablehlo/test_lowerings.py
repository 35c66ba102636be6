"""Every lowering's StableHLO text must parse elsewhere and compute what the device computed.

PyTorch's own operator samples run on the device with TORCH_NEURONX_DUMP, which writes each program
with the data of its first run; XLA's CPU client then runs the text on the same data.
NEURON_STABLEHLO_SAMPLES and NEURON_STABLEHLO_DTYPES ("float32 bfloat16 ...") widen the walk.
"""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("jax", reason="jax is not installed: nothing independent to run StableHLO on")
pytest.importorskip("jaxlib.xla_client", reason="jaxlib is not installed")
pytest.importorskip("expecttest", reason="PyTorch's operator samples need expecttest")

import xla_runner

HERE = pathlib.Path(__file__).parent
SAMPLES = os.environ.get("NEURON_STABLEHLO_SAMPLES", "1")
DTYPES = os.environ.get("NEURON_STABLEHLO_DTYPES", "float32").split()

# Relative and absolute, by the dtype of the result.
TOLERANCES = {
    "float16": (1e-3, 1e-3),
    "bfloat16": (1.6e-2, 1e-3),
    "float32": (1e-4, 1e-5),
    "complex64": (1e-4, 1e-5),
    "float64": (1e-7, 1e-7),
    "complex128": (1e-7, 1e-7),
}
# torch.sort promises no order among equal elements; XLA's is stable.
ANY_ORDER = "{ints = array<i64: 0, 2>}, decomposition = @sort"


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    environment = {**os.environ, "TORCH_NEURONX_DUMP": str(folder), "TORCH_NEURONX_DUMP_DATA": "1"}
    subprocess.run(
        [sys.executable, HERE / "run_operators.py", SAMPLES, *DTYPES], check=True, env=environment
    )
    return folder


def data_of(path, suffix, types):
    return [path.with_suffix(f".{suffix}{i}").read_bytes() for i in range(len(types))]


def check(path, text):
    argument_types, result_types = xla_runner.signature(text)
    results = xla_runner.run(text, data_of(path, "in", argument_types))
    ours = data_of(path, "out", result_types)
    for i, (got, (shape, dtype)) in enumerate(zip(results, result_types, strict=True)):
        want = np.frombuffer(ours[i], dtype)[: got.size].reshape(shape)
        problem = xla_runner.difference(got, want, *TOLERANCES.get(dtype.name, (0, 0)))
        if problem:
            return f"result {i}: {problem}"
    return None


def test_every_lowering_computes_on_xla_what_the_device_computes(dump):
    checked, problems = 0, []
    for path in sorted(dump.glob("*.mlir")):
        text = path.read_text()
        name = path.with_suffix(".op")
        # Custom calls are kernels of the CPU compiler's library: nothing XLA could run.
        if "custom_call" in text or ANY_ORDER in text or not name.exists():
            continue
        checked += 1
        try:
            problem = check(path, text)
        except Exception as error:  # One broken module must not hide the others.
            problem = str(error)[:300]
        if problem:
            problems.append(f"{name.read_text()} ({path.stem}): {problem}")
    assert checked > 700, f"only {checked} programs were written"
    assert not problems, "\n".join(problems)


def test_library_calls_are_read_by_an_independent_parser(dump):
    from jaxlib.mlir import ir
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mlir.dialects import stablehlo

    texts = [t for t in (p.read_text() for p in dump.glob("*.mlir")) if "custom_call" in t]
    assert len(texts) > 50
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    with ir.Context() as context:
        context.append_dialect_registry(registry)
        context.load_all_available_dialects()
        stablehlo.register_dialect(context)
        for text in texts:
            assert ir.Module.parse(text).operation.verify()
