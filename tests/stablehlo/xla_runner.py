"""Runs StableHLO text on XLA's CPU client: a reader and executor that shares no code with ours."""

import math
import os
import re

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import ml_dtypes
import numpy as np
from jaxlib import xla_client

jax.config.update("jax_enable_x64", True)

DTYPES = {
    "i1": np.bool_,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "ui8": np.uint8,
    "ui16": np.uint16,
    "ui32": np.uint32,
    "ui64": np.uint64,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E4M3": ml_dtypes.float8_e4m3,
    "f8E5M2": ml_dtypes.float8_e5m2,
    "complex<f32>": np.complex64,
    "complex<f64>": np.complex128,
}


def _types(text):
    """(shape, dtype) of every tensor type in a piece of text."""
    types = []
    for body in re.findall(r"tensor<((?:[^<>]|<[^<>]*>)*)>", text):
        shape, element = re.fullmatch(r"((?:\d+x)*)(.*)", body).groups()
        types.append((tuple(int(n) for n in shape.split("x") if n), np.dtype(DTYPES[element])))
    return types


def signature(text):
    """Types of the arguments and results of @main."""
    arguments, results = re.search(r"@main\((.*?)\) -> \((.*?)\) \{\n", text).groups()
    return _types(arguments), _types(results)


def run(text, inputs):
    """Results of @main for raw inputs (bytes), as arrays."""
    argument_types, result_types = signature(text)
    arrays = [
        np.frombuffer(data, dtype).reshape(shape)
        for data, (shape, dtype) in zip(inputs, argument_types, strict=True)
    ]
    device = jax.devices("cpu")[0]
    options = xla_client.CompileOptions()
    # Otherwise a chain of bf16 ops may be computed in f32 throughout.
    options.env_option_overrides = [("xla_allow_excess_precision", False)]
    debug = options.executable_build_options.debug_options
    debug.xla_cpu_enable_fast_math = False
    # The modules are tiny and there are hundreds: compile time is all that counts.
    debug.xla_backend_optimization_level = 0
    debug.xla_llvm_disable_expensive_passes = True
    executable = device.client.compile_and_load(
        text.encode(), xla_client._xla.DeviceList((device,)), options
    )
    outputs = executable.execute_sharded([jax.device_put(a, device) for a in arrays])
    outputs = outputs.disassemble_into_single_device_arrays()
    return [
        np.asarray(out[0]).view(dtype).reshape(shape)
        for out, (shape, dtype) in zip(outputs, result_types, strict=True)
    ]


def difference(got, want, rtol, atol):
    """None if equal (NaN equals NaN), else what differs first."""
    exact = got.dtype.kind in "biu" or (rtol == 0 and atol == 0)
    wide = np.complex128 if got.dtype.kind == "c" else got.dtype if exact else np.float64
    if got.dtype.kind in "V" or got.dtype not in (np.int64, np.uint64):
        wide = np.complex128 if got.dtype.kind == "c" else np.float64
    g, w = got.astype(wide), want.astype(wide)

    def close(a, b):
        with np.errstate(all="ignore"):
            same = (a == b) | (np.isnan(a) & np.isnan(b)) if a.dtype.kind == "f" else a == b
            return same if exact else same | (np.abs(a - b) <= atol + rtol * np.abs(b))

    good = close(g.real, w.real) & close(g.imag, w.imag) if wide is np.complex128 else close(g, w)
    if good.all():
        return None
    where = tuple(int(i) for i in np.argwhere(~good)[0])
    return (
        f"{math.prod(good.shape) - int(good.sum())} elements differ, first at {where}: "
        f"{got[where]} instead of {want[where]}"
    )
