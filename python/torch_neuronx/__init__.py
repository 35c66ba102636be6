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
    current_device,
    device,
    device_count,
    get_device_properties,
    set_device,
    synchronize,
)
from torch_neuronx.neuron import (
    is_initialized as is_neuron_runtime_initialized,
)
from torch_neuronx.neuron_dynamo_backend.metrics import (
    get_dynamo_metrics,
    reset_dynamo_metrics,
)
from torch_neuronx.ops import (
    clear_op_tracking,
    get_executed_ops,
    get_fallback_ops,
    get_runtime_stats,
    reset_op_stats,
    set_fallback_allowed,
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

__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "__version__",
    "clear_op_tracking",
    "current_device",
    "current_stream",
    "default_stream",
    "device",
    "device_count",
    "empty_cache",
    "get_device_properties",
    "get_dynamo_metrics",
    "get_executed_ops",
    "get_fallback_ops",
    "get_runtime_stats",
    "is_neuron_runtime_initialized",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_dynamo_metrics",
    "reset_op_stats",
    "reset_peak_memory_stats",
    "set_device",
    "set_fallback_allowed",
    "set_stream",
    "stream",
    "synchronize",
]
