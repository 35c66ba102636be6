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


def get_neuron_registered_ops(as_sorted: bool = True, keep_variant: bool = True):
    """Operators with a kernel of their own on the device: "aten::add.Tensor", or "aten::add"
    without the variant."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key("PrivateUse1")
    found = {name if keep_variant else name.split(".")[0] for name in names}
    return sorted(found) if as_sorted else found
