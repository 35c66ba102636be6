"""Capture and replay of a stream's work."""

import pytest
import torch
from conftest import DEVICE


def test_captured_work_runs_on_replay_only():
    x = torch.zeros(4, device=DEVICE)
    graph, stream = torch.accelerator.Graph(), torch.Stream(device=DEVICE)
    with stream, graph:
        x += 1
        y = x * 10
    assert x.tolist() == [0] * 4
    for _ in range(3):
        graph.replay()
    assert x.tolist() == [3] * 4 and y.tolist() == [30] * 4
    x.fill_(7)
    graph.replay()
    assert y.tolist() == [80] * 4


def test_memory_of_a_graph_is_not_reused():
    graph = torch.neuron.CUDAGraph()
    x = torch.ones(1000, device=DEVICE)
    with torch.neuron.graph(graph):
        y = (x + 1) * 2  # The sum's memory is free as soon as it is captured.
    others = [torch.full((1000,), 5.0, device=DEVICE) for _ in range(8)]
    graph.replay()
    assert y.eq(4).all() and all(o.eq(5).all() for o in others)


def test_random_numbers_differ_from_replay_to_replay():
    x = torch.zeros(100, device=DEVICE)
    graph = torch.neuron.NeuronGraph()
    with torch.neuron.graph(graph):
        x.copy_(torch.rand(100, device=DEVICE))
    torch.manual_seed(1)
    seen = []
    for _ in range(2):
        graph.replay()
        seen.append(x.cpu())
    torch.manual_seed(1)
    graph.replay()
    assert not torch.equal(*seen) and torch.equal(x.cpu(), seen[0])


def test_a_training_step_can_be_captured():
    model = torch.nn.Linear(8, 4).to(DEVICE)
    same = torch.nn.Linear(8, 4).to(DEVICE)
    same.load_state_dict(model.state_dict())
    inputs = torch.randn(6, 8).to(DEVICE)

    def step(net, optimizer):
        optimizer.zero_grad(set_to_none=False)
        net(inputs).square().mean().backward()
        optimizer.step()

    optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in (model, same)]
    for net, optimizer in zip((model, same), optimizers, strict=True):
        step(net, optimizer)
    graph = torch.neuron.CUDAGraph()
    with torch.neuron.graph(graph):
        step(model, optimizers[0])
    for _ in range(3):
        graph.replay()
        step(same, optimizers[1])
    torch.testing.assert_close(model.weight.cpu(), same.weight.cpu())


def test_waiting_for_captured_work_is_refused():
    x = torch.ones(3, device=DEVICE)
    graph = torch.neuron.CUDAGraph()
    refused = pytest.raises(RuntimeError, match="not permitted when the stream is capturing")
    with refused, torch.neuron.graph(graph):
        assert torch.neuron.is_current_stream_capturing()
        x.sum().item()
    assert not torch.neuron.is_current_stream_capturing()
    with pytest.raises(RuntimeError, match="cannot be replayed"):
        graph.replay()
    with pytest.raises(RuntimeError, match="captured before"):
        torch.accelerator.Graph().replay()
    assert x.sum().item() == 3


def test_reset_and_description(tmp_path):
    x = torch.ones(3, device=DEVICE)
    graph = torch.accelerator.Graph()
    graph.enable_debug_mode()
    stream = torch.Stream(device=DEVICE)
    with stream, graph:
        x *= 2
    graph.debug_dump(str(tmp_path / "graph.txt"))
    assert "aten::mul_" in (tmp_path / "graph.txt").read_text()
    graph.reset()
    with stream, graph:
        x += 1
    graph.replay()
    assert x.tolist() == [2] * 3


def test_streams_and_events():
    stream = torch.neuron.Stream()
    assert torch.neuron.default_stream().stream_id == 0 and stream == stream
    assert stream != torch.neuron.default_stream() and len({stream, stream}) == 1
    assert len({torch.neuron.Stream().stream_id for _ in range(8)}) == 8
    with torch.neuron.stream(None), torch.neuron.stream(stream):
        assert torch.neuron.current_stream() == stream
    with pytest.raises(KeyError), torch.neuron.stream(stream):
        raise KeyError
    assert torch.neuron.current_stream().stream_id == 0
    start, end = (torch.neuron.Event(enable_timing=True) for _ in range(2))
    assert isinstance(start, torch.neuron.Event)
    start.record()
    torch.ones(300, 300, device=DEVICE) @ torch.ones(300, 300, device=DEVICE)
    end.record(torch.neuron.current_stream())
    end.wait(stream)
    end.synchronize()
    assert end.query() is True and start.elapsed_time(end) > 0
    x = torch.ones(3, device=DEVICE)
    for s in (stream, stream, torch.neuron.current_stream(), torch.neuron.default_stream()):
        x.record_stream(s)
    with pytest.raises(RuntimeError):
        x.record_stream(None)
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.ones(3).record_stream(stream)
