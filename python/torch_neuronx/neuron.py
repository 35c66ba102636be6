"""``torch.neuron``: the device module, with the names of ``torch.cuda``."""

import functools

import torch

from torch_neuronx import _C, amp, nvtx, random, streams
from torch_neuronx import _utils as _utils
from torch_neuronx import memory as memory
from torch_neuronx._utils import check_index as _check_index
from torch_neuronx._utils import device_index as _device_index
from torch_neuronx.graphs import CUDAGraph, NeuronGraph, graph, graph_pool_handle
from torch_neuronx.memory import (
    empty_cache,
    empty_host_cache,
    get_per_process_memory_fraction,
    host_memory_stats,
    host_memory_stats_as_nested_dict,
    max_memory_allocated,
    max_memory_cached,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_cached,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_host_memory_stats,
    reset_accumulated_memory_stats,
    reset_max_memory_allocated,
    reset_max_memory_cached,
    reset_peak_host_memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from torch_neuronx.neuron_dynamo_backend.metrics import (
    get_dynamo_metrics as get_dynamo_metrics,
)
from torch_neuronx.neuron_dynamo_backend.metrics import (
    reset_dynamo_metrics as reset_dynamo_metrics,
)
from torch_neuronx.ops import (
    clear_op_tracking as clear_op_tracking,
)
from torch_neuronx.ops import (
    get_executed_ops as get_executed_ops,
)
from torch_neuronx.ops import (
    get_fallback_ops as get_fallback_ops,
)
from torch_neuronx.random import _get_generator as _get_generator
from torch_neuronx.random import (
    default_generators,
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

OutOfMemoryError = torch.OutOfMemoryError
AcceleratorError = torch.AcceleratorError


def is_available() -> bool:
    """At least one NeuronCore is visible. Never raises; does not open the runtime."""
    try:
        return _C._device_count() > 0
    except Exception:  # A broken environment means "not available".
        return False


def is_initialized() -> bool:
    """The runtime has been opened in this process."""
    return _C._is_initialized() and not _C._in_bad_fork()


is_neuron_runtime_initialized = is_initialized


def __getattr__(name: str):
    if name in _TENSOR_TYPES:
        return _tensor_type(name)
    # torch.utils.checkpoint asks for it by this name before it saves the random state.
    if name == "_initialized":
        return is_initialized()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _is_in_bad_fork() -> bool:
    return _C._in_bad_fork()


def _lazy_init() -> None:
    if _C._in_bad_fork():
        from torch_neuronx._register import fork_message

        raise RuntimeError(fork_message())


def init() -> None:
    """Opens the runtime on the current device."""
    _lazy_init()
    _C._ensure_device(_C._current_device())


def device_count() -> int:
    """Logical NeuronCores visible to this process."""
    return _C._device_count()


def current_device() -> int:
    """The calling thread's device index."""
    return _C._current_device()


def _set_device(device) -> None:
    """Makes ``device`` (int, str or torch.device) the calling thread's current device.

    None or a negative index change nothing. Threads that never call this use what the main thread
    has chosen. Raises an error that is a ValueError and a RuntimeError if there is no such device.
    """
    index = _device_index(device, optional=True)
    if index >= 0:
        _C._set_device(_check_index(index))


def set_device(device) -> None:
    """As ``torch_neuronx.set_device``, which it calls."""
    import torch_neuronx

    torch_neuronx.set_device(device)


class device:
    """Context manager that changes the calling thread's current device.

    ``device``: torch.device, str or int; a negative index or None changes nothing.
    """

    def __init__(self, device):
        self.idx = _device_index(device, optional=True)
        self.prev_idx = -1

    def __enter__(self):
        self.prev_idx = _C._current_device()
        if self.idx >= 0:
            torch._C._accelerator_exchangeDevice(_check_index(self.idx))
        return self

    def __exit__(self, kind, value, traceback):
        if self.prev_idx != _C._current_device():
            torch._C._accelerator_exchangeDevice(self.prev_idx)
        return False


class device_of(device):
    """Context manager: the device of a tensor or storage (unchanged if it is not on neuron)."""

    def __init__(self, obj):
        super().__init__(obj.get_device() if obj.device.type == "neuron" else -1)


def exchange_device(device: int) -> int:
    """Makes a device current, if the index is not negative, and returns the former one."""
    previous = _C._current_device()
    if device >= 0:
        torch._C._accelerator_exchangeDevice(_check_index(device))
    return previous


maybe_exchange_device = exchange_device


def synchronize(device=None) -> None:
    """Waits for all streams of the device; raises the first deferred error."""
    _lazy_init()
    index = _device_index(device, optional=True)
    _C._synchronize(index if index >= 0 else _C._current_device())


class _NeuronDeviceProperties:
    """Facts of one logical NeuronCore.

    ``name``: instance family ("trn2"); ``total_memory``: bytes of HBM; ``lnc``: physical cores.
    """

    def __init__(self, name: str, total_memory: int, lnc: int):
        self.name = name
        self.total_memory = total_memory
        self.lnc = lnc
        self.multi_processor_count = lnc
        self.major, self.minor = int(name[3:4] or 0), 0

    def __repr__(self):
        return (
            f"_NeuronDeviceProperties(name={self.name!r}, "
            f"total_memory={self.total_memory >> 20}MB, lnc={self.lnc})"
        )


def get_device_properties(device=None) -> _NeuronDeviceProperties:
    """Properties of the device (default: the current one)."""
    return _NeuronDeviceProperties(*_C._device_properties(_check_index(_device_index(device))))


def get_device_name(device=None) -> str:
    """``"neuron:<index>"``. Raises ValueError for what names no device."""
    try:
        index = _device_index(device)
    except (TypeError, RuntimeError) as error:
        raise ValueError(f"Invalid device: {device!r}") from error
    return f"neuron:{_check_index(index)}"


def get_device_capability(device=None) -> tuple[int, int]:
    """(generation, 0): (2, 0) for Trn2, (3, 0) for Trn3."""
    properties = get_device_properties(device)
    return properties.major, properties.minor


def is_bf16_supported(including_emulation: bool = True) -> bool:
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """What ``torch.autocast("neuron")`` accepts."""
    return [torch.float32, torch.float16, torch.bfloat16]


def is_current_stream_capturing() -> bool:
    """The current stream's work is being recorded into a graph and not run."""
    return _C._is_capturing()


def can_device_access_peer(device, peer_device) -> bool:
    return True


def ipc_collect() -> None:
    """Nothing is shared between processes, so nothing has to be collected."""


def get_stream_from_external(data_ptr: int, device=None):
    raise NotImplementedError("neuron: streams of other libraries cannot be wrapped")


def utilization(device=None) -> int:
    raise RuntimeError("neuron: utilization is measured by hardware tools, not by this package")


def _sleep(cycles: int) -> None:
    """No-op; exists for programs written for torch.cuda."""


# -- Legacy tensor types: torch.neuron.FloatTensor(2, 3) ---------------------------------------

_TENSOR_TYPES = {
    "BFloat16Tensor": torch.bfloat16,
    "BoolTensor": torch.bool,
    "ByteTensor": torch.uint8,
    "CharTensor": torch.int8,
    "DoubleTensor": torch.float64,
    "FloatTensor": torch.float32,
    "HalfTensor": torch.float16,
    "IntTensor": torch.int32,
    "LongTensor": torch.int64,
    "ShortTensor": torch.int16,
}


class _TensorTypeMeta(type):
    def __instancecheck__(cls, obj):
        return (
            isinstance(obj, torch.Tensor) and obj.device.type == "neuron" and obj.dtype == cls.dtype
        )

    def __call__(cls, *args):
        """Sizes give an uninitialised tensor, a sequence or array its values, a tensor a copy."""
        if len(args) == 1 and not isinstance(args[0], (int, torch.Size)):
            return torch.as_tensor(args[0]).to("neuron", cls.dtype)
        sizes = args[0] if len(args) == 1 and isinstance(args[0], torch.Size) else args
        return torch.empty(tuple(sizes) or (0,), dtype=cls.dtype, device="neuron")


@functools.cache
def _tensor_type(name: str):
    members = {"dtype": _TENSOR_TYPES[name], "__module__": "torch.neuron"}
    return _TensorTypeMeta(name, (), members)
