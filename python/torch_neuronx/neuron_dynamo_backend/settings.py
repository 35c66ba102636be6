"""Settings of the Dynamo backend that cost nothing to import."""

_model_name = "model_default"


def set_model_name(name: str) -> None:
    """Names the graphs compiled from now on (in errors, traces and StableHLO text)."""
    global _model_name
    _model_name = name


def get_model_name() -> str:
    return _model_name
