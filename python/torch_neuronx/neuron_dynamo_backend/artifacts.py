"""FX graphs and their StableHLO as text and files."""

import pathlib

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torch_neuronx import _C
from torch_neuronx.neuron_dynamo_backend.decompositions import decomposition_table
from torch_neuronx.neuron_dynamo_backend.record import GraphRecorder


def _write(path, text: str) -> str:
    path = pathlib.Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def save_fx_graph_txt(gm: torch.fx.GraphModule, path) -> str:
    """Writes the graph's nodes, one a line, and returns the path."""
    return _write(path, str(gm.graph) + "\n")


def fx_to_mlir_string(gm: torch.fx.GraphModule, example_inputs=None, name: str = "graph") -> str:
    """The StableHLO text of a graph of ATen operators.

    ``example_inputs``: tensors on the device; needed if the graph was not traced with values.
    """
    placeholders = gm.graph.find_nodes(op="placeholder")
    if example_inputs is not None or any("val" not in node.meta for node in placeholders):
        if example_inputs is None:
            raise ValueError("fx_to_mlir_string: the graph was not traced; give example_inputs")
        gm = make_fx(gm, decomposition_table(), tracing_mode="fake")(*example_inputs)
    recorder = GraphRecorder(gm, _C.Graph(name, 0, keep_text=True))
    recorder.record()
    recorder.graph.specialise(recorder.hints())
    return recorder.graph.stablehlo


def save_mlir(text: str, path) -> str:
    """Writes StableHLO text and returns the path."""
    return _write(path, text)


def load_mlir(path) -> str:
    """Reads what save_mlir wrote."""
    return pathlib.Path(path).read_text()


def save_fx_as_mlir(gm: torch.fx.GraphModule, path, example_inputs=None) -> str:
    """Writes the graph as StableHLO and returns the path."""
    return save_mlir(fx_to_mlir_string(gm, example_inputs), path)


def save_fx_graph_all_formats(
    gm: torch.fx.GraphModule, folder, name: str = "graph", example_inputs=None
) -> dict[str, str]:
    """Writes ``<name>.txt`` (nodes), ``.py`` (code) and ``.mlir``; returns the paths by format."""
    folder = pathlib.Path(folder)
    return {
        "txt": save_fx_graph_txt(gm, folder / f"{name}.txt"),
        "py": _write(folder / f"{name}.py", gm.code),
        "mlir": save_fx_as_mlir(gm, folder / f"{name}.mlir", example_inputs),
    }
