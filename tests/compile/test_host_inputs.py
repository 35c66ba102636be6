"""Graphs with inputs on the CPU, settings that are read per graph, and the records of graphs."""

import pytest
import torch
import torch_neuronx
from conftest import DEVICE
from torch_neuronx import neuron_dynamo_backend as backend


def compiled(function, **options):
    return torch.compile(function, backend="neuron", **options)


def test_inputs_on_the_cpu_are_copied():
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    out = compiled(lambda a, b: torch.relu(a @ b.t()) + torch.ones(3))(x, y)
    assert out.device.type == "neuron"
    torch.testing.assert_close(out.cpu(), torch.relu(x @ y.t()) + 1)


def test_a_model_on_the_cpu_trains():
    torch.manual_seed(0)
    model, x = torch.nn.Linear(4, 3), torch.randn(5, 4)
    expected = torch.autograd.grad(model(x).square().sum(), model.weight)[0]
    compiled(model)(x).square().sum().backward()
    assert model.weight.grad.device.type == "cpu"
    torch.testing.assert_close(model.weight.grad, expected)


def test_written_inputs_are_written_back():
    def step(cache, value):
        cache[:, 1] = value
        cache.add_(1)
        return cache.sum()

    cache, expected = torch.zeros(2, 3), torch.zeros(2, 3)
    total = step(expected, 5.0)
    assert compiled(step)(cache, 5.0).item() == total
    assert torch.equal(cache, expected)


def test_copies_can_be_forbidden(monkeypatch):
    monkeypatch.setenv("TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY", "1")
    with pytest.raises(RuntimeError, match="Input tensor at index 0 is on cpu device"):
        compiled(lambda a: a * 2)(torch.ones(3))
    monkeypatch.setenv("TORCH_NEURONX_DYNAMO_DISABLE_CPU_AUTOCOPY", "0")
    assert compiled(lambda a: a * 2)(torch.ones(3)).tolist() == [2, 2, 2]


def test_results_can_stay_on_the_cpu(monkeypatch):
    monkeypatch.setenv("TORCH_NEURONX_RETAIN_DEVICE_MODE", "1")
    out = compiled(lambda a: a * 2)(torch.ones(3))
    assert out.device.type == "cpu" and out.tolist() == [2, 2, 2]


def test_fallback_execution_can_be_forbidden(monkeypatch):
    x = torch.randint(0, 3, (8,)).float().to(DEVICE)

    def function(a):
        return torch.ops.aten.unique_dim(a.reshape(4, 2) + 1, 0)[0]

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        torch._dynamo.reset()
        with pytest.raises(Exception, match="cannot run"):
            compiled(function, options={"fallback_execution": False})(x)
        torch._dynamo.reset()
        monkeypatch.setenv("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", "1")
        with pytest.raises(Exception, match="cannot run"):
            compiled(function)(x)


def test_options_are_checked():
    x = torch.ones(2, device=DEVICE)
    with pytest.raises(Exception, match="unknown torch"):
        compiled(lambda a: a + 1, options={"nonsense": 1})(x)
    with pytest.raises(Exception, match="is not supported: use"):
        compiled(lambda a: a + 2, options={"dynamic": True})(x)


def test_records_of_graphs():
    from torch._dynamo.utils import counters

    torch_neuronx.reset_dynamo_metrics()
    backend.set_model_name("model_default")
    x = torch.ones(2, 3, device=DEVICE, requires_grad=True)
    compiled(lambda a: (a * 2).sin().sum(), options={"model_name": "named"})(x).backward()
    records = torch.neuron.get_dynamo_metrics()
    assert counters["neuron"]["compiled_graphs"] == len(records) == 2
    for record, kind in zip(records, ("forward", "backward"), strict=True):
        assert record["model_name"] == "named" and record["graph_node_count"] > 2
        name, call, found, number = record["graph_name"].rsplit("_", 3)
        assert name == "named" and found == kind and call.isdigit() and number.isdigit()
        for field in ("fx_passes", "lower", "compile"):
            assert record[f"torch_neuronx_{field}_us"] >= 0
        assert record["torch_neuronx_fx_passes_us"] > 0
    assert "neuron" in str(torch._dynamo.utils.compile_times())
    backend.set_model_name("other")
    compiled(lambda a: a + 5)(x.detach())
    assert torch.neuron.get_dynamo_metrics()[-1]["graph_name"].startswith("other_")
    backend.set_model_name("model_default")
    torch_neuronx.reset_dynamo_metrics()
    assert torch.neuron.get_dynamo_metrics() == [] and not counters["neuron"]


def test_artifacts(tmp_path):
    gm = torch.fx.symbolic_trace(lambda a: torch.sin(a) + 1)
    x = torch.ones(2, 3, device=DEVICE)
    paths = backend.save_fx_graph_all_formats(gm, tmp_path, example_inputs=[x])
    text = backend.load_mlir(paths["mlir"])
    assert "stablehlo.sine" in text and "sin" in (tmp_path / "graph.txt").read_text()
    assert "torch" in (tmp_path / "graph.py").read_text()
    assert backend.get_rank() == 0
    out = torch.compile(lambda a: a * 3, backend=backend.create_neuron_backend(model_name="m"))(x)
    assert out.sum().item() == 18
