"""``torch.backends.neuron``: the switches of ``torch.backends.cuda`` for this device."""

import torch


class _Matmul:
    """What products may do. Each switch permits less precision; the simulator makes no use of it:
    its f32 products are f32, its f16 and bf16 products sum in f32."""

    def __init__(self):
        self._flags = {
            "allow_tf32": False,
            "allow_fp16_reduced_precision_reduction": True,
            "allow_bf16_reduced_precision_reduction": True,
            "allow_fp16_accumulation": False,
        }

    @property
    def fp32_precision(self) -> str:
        return "tf32" if self._flags["allow_tf32"] else "ieee"

    @fp32_precision.setter
    def fp32_precision(self, value: str) -> None:
        if value not in ("ieee", "tf32", "none"):
            raise ValueError(f"fp32_precision must be 'ieee', 'tf32' or 'none', not {value!r}")
        self._flags["allow_tf32"] = value == "tf32"

    def __getattr__(self, name: str) -> bool:
        if name.startswith("_") or name not in self._flags:
            raise AttributeError(f"Unknown attribute {name}")
        return self._flags[name]

    def __setattr__(self, name: str, value) -> None:
        if name in ("_flags", "fp32_precision"):
            object.__setattr__(self, name, value)
        elif name not in self._flags:
            raise AttributeError(f"Unknown attribute {name}")
        elif not isinstance(value, bool):
            raise TypeError(f"{name} must be a bool, not {type(value).__name__}")
        else:
            self._flags[name] = value


matmul = _Matmul()

# The choice among attention kernels is one for all devices.
SDPAParams = torch.backends.cuda.SDPAParams
enable_cudnn_sdp = torch.backends.cuda.enable_cudnn_sdp
enable_flash_sdp = torch.backends.cuda.enable_flash_sdp
enable_math_sdp = torch.backends.cuda.enable_math_sdp
enable_mem_efficient_sdp = torch.backends.cuda.enable_mem_efficient_sdp
flash_sdp_enabled = torch.backends.cuda.flash_sdp_enabled
math_sdp_enabled = torch.backends.cuda.math_sdp_enabled
mem_efficient_sdp_enabled = torch.backends.cuda.mem_efficient_sdp_enabled
sdp_kernel = torch.backends.cuda.sdp_kernel


def is_built() -> bool:
    return True


def is_available() -> bool:
    from torch_neuronx import neuron

    return neuron.is_available()
