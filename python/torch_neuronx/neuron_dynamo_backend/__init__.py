"""``torch.compile(backend="neuron")``: FX graphs through the device's own lowerings."""

from torch_neuronx.neuron_dynamo_backend.exceptions import (
    NEFFCompilationError,
    NEFFExecutionError,
)
from torch_neuronx.neuron_dynamo_backend.settings import (
    get_model_name,
    set_model_name,
)

_artifact_functions = (
    "fx_to_mlir_string",
    "load_mlir",
    "save_fx_as_mlir",
    "save_fx_graph_all_formats",
    "save_fx_graph_txt",
    "save_mlir",
)

__all__ = [
    "NEFFCompilationError",
    "NEFFExecutionError",
    "create_neuron_backend",
    "get_model_name",
    "get_rank",
    "neuron_backend",
    "set_model_name",
    *_artifact_functions,
]


def get_rank() -> int:
    """This process's rank: of torch.distributed if it is up, else RANK, else 0."""
    import os

    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK", "0"))


def create_neuron_backend(**options):
    """The backend with options for all its graphs: ``create_neuron_backend(model_name=...)``."""
    from torch_neuronx.neuron_dynamo_backend.backend import neuron_backend

    def backend(gm, example_inputs, *, options=None, **kwargs):
        return neuron_backend(gm, example_inputs, options={**fixed, **(options or {})}, **kwargs)

    fixed = options
    return backend


def __getattr__(name):
    # backend.py imports Dynamo, which costs a second: only when it is asked for.
    if name == "neuron_backend":
        from torch_neuronx.neuron_dynamo_backend.backend import neuron_backend

        return neuron_backend
    if name in _artifact_functions:
        from torch_neuronx.neuron_dynamo_backend import artifacts

        return getattr(artifacts, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
