"""What happens once per process when torch loads this package."""

import atexit
import importlib.abc
import importlib.machinery
import os
import sys

import torch

from torch_neuronx._version import TORCH_VERSION

# Programs look at these to know how the package works.
_DEFAULTS = {
    "TORCH_NEURONX_MLIR_ATEN_OPS": "1",
    "TORCH_NEURONX_FALLBACK_ONLY_FOR_UNIMPLEMENTED_OPS": "1",
    "NEURON_LAUNCH_BLOCKING": "0",
    "TORCH_NEURONX_RETAIN_DEVICE_MODE": "0",
}


def register() -> None:
    found = torch.__version__.split("+")[0]
    if found != TORCH_VERSION:
        raise ImportError(
            f"torch_neuronx was built for torch {TORCH_VERSION}, but torch {torch.__version__} is "
            f"installed; install torch=={TORCH_VERSION}, or set TORCH_DEVICE_BACKEND_AUTOLOAD=0"
        )
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    from torch_neuronx import _C, _dtensor, _fake_shapes, distributed, neuron

    torch.utils.rename_privateuse1_backend("neuron")
    torch._register_device_module("neuron", neuron)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    _register_submodules()
    distributed.register()
    _print_through_the_host()
    _exchange_by_dlpack()
    _when_imported("torch._dynamo.backends.registry", _prepare_dynamo)
    _when_imported("torch.nn.attention.flex_attention", _admit_flex_attention)
    _fake_shapes.prepare()
    _dtensor.prepare(_when_imported)
    _when_imported("torch.nn.modules.linear_cross_entropy_options", _choose_cross_entropy)
    atexit.register(_C._shutdown)


def _register_submodules() -> None:
    """Makes ``import torch.neuron.amp`` and the like work: torch.neuron is no package."""
    from torch_neuronx import _C, amp, backends, graphs, memory, nvtx, random, streams

    torch.backends.neuron = backends
    sys.modules["torch.backends.neuron"] = backends
    for module in (amp, graphs, memory, nvtx, random, streams):
        sys.modules[f"torch.neuron.{module.__name__.rsplit('.', 1)[1]}"] = module
    for name, function in _private_names().items():
        setattr(_C, name, function)


def _private_names() -> dict:
    """Functions that programs written for other releases look for on ``_C``."""
    from torch_neuronx import _C

    def check(tensor, expected: str, what: str) -> None:
        if tensor.device.type != expected:
            raise RuntimeError(f"{what} is on {tensor.device.type} device, expected {expected}")

    def copier(source_type: str, destination_type: str):
        def copy(source, destination, non_blocking: bool = False):
            check(source, source_type, "source")
            check(destination, destination_type, "destination")
            return destination.copy_(source, non_blocking=non_blocking)

        return copy

    def cache_keys() -> list[str]:
        return [entry["cache_key"] for entry in _C._get_compilation_cache_entries()]

    def target() -> str:
        return _C._device_properties(0)[0]

    return {
        "_nrt_copy_cpu_to_neuron_tensor": copier("cpu", "neuron"),
        "_nrt_copy_neuron_to_cpu_tensor": copier("neuron", "cpu"),
        "_nrt_copy_neuron_to_neuron_tensor": copier("neuron", "neuron"),
        "_get_all_cache_keys": cache_keys,
        "_get_default_generator": _C._default_generator,
        "_get_instance_type": target,
        "_get_platform_target": target,
        "_get_logical_neuron_cores": lambda: str(_C._device_properties(0)[2]),
        "_vnc_count": _C._device_count,
    }


def _print_through_the_host() -> None:
    """repr() of a device tensor would read it element by element; copy it to the host once."""
    import torch._tensor_str as tensor_str

    plain = tensor_str._tensor_str

    def _tensor_str(self, indent):
        if isinstance(self, torch.Tensor) and self.device.type == "neuron":
            self = self.detach().to("cpu")
        return plain(self, indent)

    tensor_str._tensor_str = _tensor_str


def _exchange_by_dlpack() -> None:
    """torch's C++ half of DLPack knows this device by its kind; the Python half asks its name."""
    from torch.utils.dlpack import DLDeviceType

    plain = torch.Tensor.__dlpack_device__

    def dlpack_device(self):
        if isinstance(self, torch.Tensor) and self.device.type == "neuron":
            return DLDeviceType.kDLExtDev, self.device.index
        return plain(self)

    torch.Tensor.__dlpack_device__ = dlpack_device


def _prepare_dynamo() -> None:
    from torch_neuronx.neuron_dynamo_backend import setup

    setup.prepare()


def _admit_flex_attention() -> None:
    """torch 2.13 lists the devices of flex_attention by name inside one function."""
    flex = sys.modules["torch.nn.attention.flex_attention"]
    validate = getattr(flex, "_validate_device", None)
    if validate is None:
        return

    def _validate_device(query, key, value):
        if query.device.type != "neuron":
            validate(query, key, value)

    flex._validate_device = _validate_device


def _choose_cross_entropy() -> None:
    """torch 2.13 names, for each device, how the chunked linear_cross_entropy adds up halves."""
    options = sys.modules["torch.nn.modules.linear_cross_entropy_options"]
    for dtype in (torch.float16, torch.bfloat16):
        as_on_cpu = options._AUTO_DEFAULTS[("cpu", dtype)]
        options._AUTO_DEFAULTS.setdefault(("neuron", dtype), as_on_cpu)
    kind = options.LinearCrossEntropyOptions
    resolve = kind._resolve_auto_acc_dtype

    def _resolve_auto_acc_dtype(dtype, device):
        if device is not None and device.type == "neuron":
            device = torch.device("cpu")
        return resolve(dtype, device)

    kind._resolve_auto_acc_dtype = staticmethod(_resolve_auto_acc_dtype)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls functions when modules have been imported, without importing them itself."""

    def __init__(self):
        self.actions = {}

    def find_spec(self, name, path, target=None):
        action = self.actions.get(name)
        if action is None:
            return None
        del self.actions[name]
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            action()

        spec.loader.exec_module = exec_module
        return spec


_after_import = _AfterImport()


def _when_imported(name: str, action) -> None:
    if name in sys.modules:
        action()
        return
    if _after_import not in sys.meta_path:
        sys.meta_path.insert(0, _after_import)
    _after_import.actions[name] = action


def fork_message() -> str:
    return (
        "Cannot re-initialize the Neuron runtime in a forked subprocess. To use it with "
        "multiprocessing, you must use the 'spawn' start method "
        f"(process {os.getpid()} was forked after its parent had used the device)"
    )
