"""What ran where: operators executed on the device, and those that fell back to the CPU."""

from torch_neuronx import _C


def get_executed_ops() -> list[str]:
    """Names ("aten::add.Tensor") of the operators that ran on the device since the last clear."""
    return list(_C._executed_ops())


def get_fallback_ops() -> list[str]:
    """Names of the operators that ran on the CPU instead since the last clear."""
    return list(_C._fallback_ops())


def get_op_counts() -> dict[str, dict[str, int]]:
    """``{"executed": {name: calls}, "fallback": {name: calls}}`` since the last clear."""
    return {"executed": dict(_C._executed_ops()), "fallback": dict(_C._fallback_ops())}


def clear_op_tracking() -> None:
    """Forgets what has been counted."""
    _C._reset_op_counts()


reset_op_stats = clear_op_tracking


def set_fallback_allowed(allowed: bool) -> None:
    """False: an op without a lowering raises NotImplementedError instead of using the CPU."""
    _C._set_fallback_allowed(bool(allowed))


def get_runtime_stats() -> dict[str, int]:
    """Counters since process start: programs built, kernels compiled, launches, disk hits."""
    return dict(_C._runtime_stats())
