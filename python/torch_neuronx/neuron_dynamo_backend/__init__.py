"""``torch.compile(backend="neuron")``: FX graphs through the device's own lowerings."""

from torch_neuronx.neuron_dynamo_backend.settings import (
    get_model_name,
    set_model_name,
)

__all__ = ["get_model_name", "neuron_backend", "set_model_name"]


def __getattr__(name):
    # backend.py imports Dynamo, which costs a second: only when it is asked for.
    if name == "neuron_backend":
        from torch_neuronx.neuron_dynamo_backend.backend import neuron_backend

        return neuron_backend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
