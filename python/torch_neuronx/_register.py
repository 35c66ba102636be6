"""What happens once per process when torch loads this package."""

import atexit
import importlib.abc
import importlib.machinery
import os
import sys

import torch

from torch_neuronx._version import TORCH_VERSION


def register() -> None:
    found = torch.__version__.split("+")[0]
    if found != TORCH_VERSION:
        raise ImportError(
            f"torch_neuronx was built for torch {TORCH_VERSION}, but torch {torch.__version__} is "
            f"installed; install torch=={TORCH_VERSION}, or set TORCH_DEVICE_BACKEND_AUTOLOAD=0"
        )
    from torch_neuronx import _C, distributed, neuron

    torch.utils.rename_privateuse1_backend("neuron")
    torch._register_device_module("neuron", neuron)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    _register_backends_module()
    distributed.register()
    _print_through_the_host()
    _when_imported("torch._dynamo.backends.registry", _prepare_dynamo)
    _when_imported("torch.nn.attention.flex_attention", _admit_flex_attention)
    atexit.register(_C._shutdown)


def _register_backends_module() -> None:
    from torch_neuronx import backends

    torch.backends.neuron = backends
    sys.modules["torch.backends.neuron"] = backends


def _print_through_the_host() -> None:
    """repr() of a device tensor would read it element by element; copy it to the host once."""
    import torch._tensor_str as tensor_str

    plain = tensor_str._tensor_str

    def _tensor_str(self, indent):
        if isinstance(self, torch.Tensor) and self.device.type == "neuron":
            self = self.detach().to("cpu")
        return plain(self, indent)

    tensor_str._tensor_str = _tensor_str


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
