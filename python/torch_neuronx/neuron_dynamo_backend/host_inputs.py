"""Graphs whose inputs are all on the CPU: copied to the device for ``backend="neuron"``."""

import os

import torch
from torch._guards import detect_fake_mode
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_map


def _is_set(name: str) -> bool:
    return os.environ.get(name, "0").lower() in ("1", "true", "yes")


def _moved_examples(example_inputs, device):
    fake_mode = detect_fake_mode(example_inputs)

    def moved(x):
        if not isinstance(x, torch.Tensor) or x.device.type != "cpu":
            return x
        with torch.no_grad():
            y = torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=device)
        return y.requires_grad_(x.requires_grad)

    if fake_mode is None:
        return [moved(x) for x in example_inputs]
    with fake_mode:
        return [moved(x) for x in example_inputs]


def _move_constants(gm, device) -> None:
    """Tensors that the graph makes on the CPU, named or by default, are made on the device."""
    constructors = _device_constructors()
    for node in gm.graph.nodes:
        if node.op != "call_function" or node.target not in constructors:
            continue
        given = node.kwargs.get("device")
        if given is None or torch.device(given).type == "cpu":
            node.kwargs = {**node.kwargs, "device": device}
    gm.recompile()


def with_host_inputs(gm, example_inputs, compile_graph):
    """``compile_graph(gm, inputs)`` for inputs on the device; the result takes them on the CPU.

    Inputs that the graph writes are copied back. Results stay on the device, unless
    TORCH_NEURONX_RETAIN_DEVICE_MODE is 1.
    """
    device = torch.device("neuron", torch.neuron.current_device())
    _move_constants(gm, device)
    compiled = compile_graph(gm, _moved_examples(example_inputs, device))

    def run(*inputs):
        if _is_set("TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY"):
            for index, x in enumerate(inputs):
                if isinstance(x, torch.Tensor) and x.device.type == "cpu":
                    raise RuntimeError(
                        f"Input tensor at index {index} is on cpu device, expected neuron "
                        "(TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY=1 forbids to copy it)"
                    )
        copies = [x.to(device) if isinstance(x, torch.Tensor) else x for x in inputs]
        versions = [x._version if isinstance(x, torch.Tensor) else 0 for x in copies]
        out = compiled(*copies)
        with torch.no_grad():
            for x, copy, version in zip(inputs, copies, versions, strict=True):
                if isinstance(x, torch.Tensor) and copy._version != version:
                    x.copy_(copy)
        if _is_set("TORCH_NEURONX_RETAIN_DEVICE_MODE"):
            out = tree_map(lambda y: y.cpu() if isinstance(y, torch.Tensor) else y, out)
        return out

    return run
