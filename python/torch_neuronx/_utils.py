"""Helpers for arguments that name a device."""

import torch

from torch_neuronx import _C


class InvalidDeviceError(ValueError, RuntimeError):
    """No such device. Programs for torch.cuda expect a RuntimeError, others a ValueError."""


def check_index(index: int) -> int:
    """The index, if this process has such a device."""
    count = _C._device_count()
    if not 0 <= index < count:
        raise InvalidDeviceError(
            f"Invalid device id {index}: Device index {index} is out of range, this process sees "
            f"{count} NeuronCores, valid range is [0, {count - 1}]"
        )
    return index


def device_index(device, optional: bool = False, allow_cpu: bool = False) -> int:
    """Index of ``device``: None (-1 or, not optional, the current one), int, str, torch.device."""
    if device is None:
        if optional:
            return -1
        return _C._current_device()
    if isinstance(device, bool):
        raise TypeError("device must be an int, str or torch.device, not bool")
    if isinstance(device, int):
        return device
    if isinstance(device, str):
        device = torch.device(device)
    if not isinstance(device, torch.device):
        raise TypeError(f"device must be an int, str or torch.device, not {type(device).__name__}")
    if allow_cpu and device.type == "cpu":
        return -1
    if device.type != "neuron":
        raise ValueError(f"Expected a neuron device, but got: {device}")
    if device.index is None:
        return _C._current_device()
    return device.index


_get_device_index = device_index
