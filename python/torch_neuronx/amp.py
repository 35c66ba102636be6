"""``torch.neuron.amp``: aliases of torch.amp for this device."""

import functools

import torch


class autocast(torch.amp.autocast_mode.autocast):
    """``torch.autocast("neuron", ...)``; bf16 unless told otherwise."""

    def __init__(self, enabled: bool = True, dtype=torch.bfloat16, cache_enabled: bool = True):
        super().__init__("neuron", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
    """``torch.amp.GradScaler("neuron", ...)``."""

    def __init__(self, *args, **kwargs):
        super().__init__("neuron", *args, **kwargs)


custom_fwd = functools.partial(torch.amp.custom_fwd, device_type="neuron")
custom_bwd = functools.partial(torch.amp.custom_bwd, device_type="neuron")
