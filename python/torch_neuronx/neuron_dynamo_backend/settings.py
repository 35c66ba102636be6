"""Settings of the Dynamo backend that cost nothing to import."""

import contextlib
import os

_model_name = "model_default"
_fallback: bool | None = None


def set_model_name(name: str) -> None:
    """Names the graphs compiled from now on (in errors, traces and StableHLO text)."""
    global _model_name
    _model_name = name


def get_model_name() -> str:
    return _model_name


@contextlib.contextmanager
def fallback_execution(allowed: bool | None):
    """While graphs are compiled: whether nodes may run outside the program; None: as the
    environment says."""
    global _fallback
    before, _fallback = _fallback, allowed
    try:
        yield
    finally:
        _fallback = before


def allows_fallback() -> bool:
    if _fallback is not None:
        return _fallback
    value = os.environ.get("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", "0")
    return value.lower() not in ("1", "true", "yes")
