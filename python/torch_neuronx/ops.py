"""What ran where: operators executed on the device, and those that fell back to the CPU."""

from torch_neuronx import _C


def get_executed_ops() -> dict[str, int]:
    """Operator name ("aten::add.Tensor") -> calls that ran on the device since the last clear."""
    return dict(_C._executed_ops())


def get_fallback_ops() -> dict[str, int]:
    """Operator name -> calls that ran on the CPU instead since the last clear."""
    return dict(_C._fallback_ops())


def clear_op_tracking() -> None:
    """Forgets both counts."""
    _C._reset_op_counts()


reset_op_stats = clear_op_tracking


def set_fallback_allowed(allowed: bool) -> None:
    """False: an op without a native lowering raises NotImplementedError, not a CPU run."""
    _C._set_fallback_allowed(bool(allowed))


def get_runtime_stats() -> dict[str, int]:
    """Counters since process start: programs built, kernels compiled, launches, disk hits."""
    return dict(_C._runtime_stats())
