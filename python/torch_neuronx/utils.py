"""Facts about the target and about what is registered for the device."""

import os

import torch


def get_platform_target() -> str:
    """The chip family that programs are made for, such as "trn2"."""
    return torch.neuron.get_device_properties(0).name


def get_logical_neuron_cores() -> str:
    """Physical cores in one logical NeuronCore, as text."""
    return str(torch.neuron.get_device_properties(0).lnc)


get_lnc_setting = get_logical_neuron_cores


def is_float8_e4m3_supported() -> bool:
    return get_platform_target() == "trn2"


def is_float8_e4m3fn_supported() -> bool:
    return get_platform_target() != "trn2"


def is_mxocp_supported() -> bool:
    return get_platform_target() != "trn2"


def is_sync_mode_enabled() -> bool:
    """``NEURON_LAUNCH_BLOCKING=1``: errors are raised by the call that causes them."""
    return os.environ.get("NEURON_LAUNCH_BLOCKING", "0") == "1"


def use_mlir_aten_ops() -> bool:
    """``TORCH_NEURONX_MLIR_ATEN_OPS=1``, which importing the package makes the default."""
    return os.environ.get("TORCH_NEURONX_MLIR_ATEN_OPS", "1") == "1"


class _OpNames(list):
    """Names with their namespace; ``in`` also knows them without."""

    def __contains__(self, name):
        return super().__contains__(name) or super().__contains__(f"aten::{name}")


def get_neuron_registered_ops(as_sorted: bool = False, keep_variant: bool = False) -> list[str]:
    """Operators with a kernel of their own on the device, from the dispatcher: "aten::add", or
    "aten::add.Tensor" with ``keep_variant``."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key("PrivateUse1")
    found = {name if keep_variant else name.split(".")[0] for name in names}
    return _OpNames(sorted(found) if as_sorted else found)


class MXFP8:
    """A tensor of 8-bit floats with one power-of-two scale per block of 32 along the last dim.

    ``data``: uint8 or the 8-bit type; ``scale``: float8_e8m0fnu or uint8 exponents; ``dtype``:
    float8_e4m3fn or float8_e5m2. Trn2 has no such format.
    """

    def __init__(self, data: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype):
        if not is_mxocp_supported():
            raise RuntimeError(f"MXFP8 is not supported on {get_platform_target()}; it needs trn3")
        if dtype not in (torch.float8_e4m3fn, torch.float8_e5m2):
            raise ValueError(f"MXFP8: dtype must be float8_e4m3fn or float8_e5m2, not {dtype}")
        if data.shape[-1] % 32 or tuple(scale.shape) != (*data.shape[:-1], data.shape[-1] // 32):
            raise ValueError(
                f"MXFP8: {list(data.shape)} elements need one scale for 32 of them in the last "
                f"dim, got {list(scale.shape)}"
            )
        self.data, self.scale, self.dtype = data, scale, dtype
