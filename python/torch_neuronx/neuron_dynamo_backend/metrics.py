"""Records of the graphs that this process has compiled."""

import time

_records: list[dict] = []


def begin_graph(name: str, model: str, gm) -> dict:
    """A record for a new graph; becomes the one that timings are added to."""
    record = {
        "graph_id": len(_records),
        "graph_name": name,
        "model_name": model,
        "has_collectives": any("c10d" in str(node.target) for node in gm.graph.nodes),
        "graph_node_count": len(gm.graph.nodes),
        "timestamp": time.time(),
        "torch_neuronx_fx_passes_us": 0,
        "torch_neuronx_lower_us": 0,
        "torch_neuronx_compile_us": 0,
    }
    _records.append(record)
    from torch._dynamo.utils import counters

    counters["neuron"]["compiled_graphs"] += 1
    if record["has_collectives"]:
        counters["neuron"]["graphs_with_collectives"] += 1
    return record


def count_passes(record: dict, seconds: float) -> None:
    """Notes the time that was spent before the graph came: tracing, differentiation, passes."""
    record["torch_neuronx_fx_passes_us"] = max(int(seconds * 1e6), 1)


def finish_graph(record: dict, seconds: float) -> None:
    """Notes the whole time that making the graph took."""
    total = int(seconds * 1e6)
    record["torch_neuronx_lower_us"] = max(total - record["torch_neuronx_compile_us"], 0)


def count_compile(seconds: float) -> None:
    """Adds the compiler's time to the newest graph."""
    if _records:
        _records[-1]["torch_neuronx_compile_us"] += int(seconds * 1e6)


def get_dynamo_metrics() -> list[dict]:
    """One record per compiled graph: names, node count and times in microseconds."""
    import torch

    torch.neuron.synchronize()
    return [dict(record) for record in _records]


def reset_dynamo_metrics() -> None:
    """Forgets the records and the ``neuron`` group of Dynamo's counters."""
    import sys

    _records.clear()
    if "torch._dynamo.utils" in sys.modules:
        sys.modules["torch._dynamo.utils"].counters["neuron"].clear()
