"""A native PyTorch backend for AWS Trainium: device, c10d and Dynamo backend ``neuron``.

``import torch`` is enough: this package is loaded through torch's ``torch.backends`` entry point.
Without a Trainium chip, programs run on a NeuronCore simulator on the CPU.
"""

from torch_neuronx._version import __version__

_loaded = False


def _autoload() -> None:
    """Registers the device ``neuron`` with torch. Idempotent; opens nothing, starts no thread."""
    global _loaded
    if _loaded:
        return
    _loaded = True
    from torch_neuronx import _register

    _register.register()


# Importing torch runs its own autoload, which finds the function above; the order matters for
# programs that import this package first.
import torch as _torch

_autoload()

from torch_neuronx import amp, memory, metrics, neuron, utils
from torch_neuronx.memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from torch_neuronx.neuron import (
    _set_device as set_device,
)
from torch_neuronx.neuron import (
    current_device,
    device,
    device_count,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_bf16_supported,
    is_initialized,
    synchronize,
)
from torch_neuronx.neuron import (
    is_initialized as is_neuron_runtime_initialized,
)
from torch_neuronx.neuron_dynamo_backend.metrics import (
    get_dynamo_metrics,
    reset_dynamo_metrics,
)
from torch_neuronx.nki_hop import nki_op, wrap_nki
from torch_neuronx.ops import (
    clear_op_tracking,
    get_executed_ops,
    get_fallback_ops,
    get_op_counts,
    get_runtime_stats,
    reset_op_stats,
    set_fallback_allowed,
)
from torch_neuronx.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torch_neuronx.streams import (
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
)

_lazy_modules = ("debug", "profiling")


def __getattr__(name: str):
    # These import more of torch than a program that only computes needs.
    import importlib

    if name in _lazy_modules:
        return importlib.import_module(f"torch_neuronx.{name}")
    if name == "NeuronProfiler":
        return importlib.import_module("torch_neuronx.profiling").NeuronProfiler
    if not name.startswith("__") and hasattr(neuron, name):
        return getattr(neuron, name)  # Both carry the same functions.
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Event",
    "NeuronProfiler",
    "Stream",
    "StreamContext",
    "__version__",
    "amp",
    "clear_op_tracking",
    "current_device",
    "current_stream",
    "debug",
    "default_stream",
    "device",
    "device_count",
    "empty_cache",
    "get_device_name",
    "get_device_properties",
    "get_dynamo_metrics",
    "get_executed_ops",
    "get_fallback_ops",
    "get_op_counts",
    "get_rng_state",
    "get_rng_state_all",
    "get_runtime_stats",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "is_neuron_runtime_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "metrics",
    "nki_op",
    "profiling",
    "reset_accumulated_memory_stats",
    "reset_dynamo_metrics",
    "reset_op_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_fallback_allowed",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
    "utils",
    "wrap_nki",
]
