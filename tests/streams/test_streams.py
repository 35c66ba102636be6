import threading

import pytest
import torch


def test_work_on_a_side_stream_is_ordered_by_events():
    side = torch.neuron.Stream()
    x = torch.zeros(1000, device="neuron")
    event = torch.neuron.Event()
    x.add_(1)
    event.record()
    with torch.neuron.stream(side):
        side.wait_event(event)
        y = x * 2
    torch.neuron.current_stream().wait_stream(side)
    y.record_stream(torch.neuron.current_stream())
    assert y.sum().item() == 2000


def test_stream_context_restores_the_previous_stream():
    before = torch.neuron.current_stream()
    with torch.neuron.stream(torch.neuron.Stream()) as _:
        assert torch.neuron.current_stream() != before
    assert torch.neuron.current_stream() == before
    assert torch.neuron.default_stream().stream_id == 0


def test_timed_events_measure_and_untimed_refuse():
    start, end = (
        torch.Event("neuron", enable_timing=True),
        torch.Event("neuron", enable_timing=True),
    )
    x = torch.randn(300, 300, device="neuron")
    start.record()
    for _ in range(5):
        x = x @ x
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) > 0
    plain = torch.Event("neuron")
    plain.record()
    with pytest.raises(ValueError, match="enable_timing"):
        plain.elapsed_time(end)


def test_two_threads_at_once():
    results = {}

    def work(name):
        x = torch.full((64, 64), float(name), device="neuron")
        for _ in range(200):
            x = x * 1.0 + 0.0
        results[name] = x.sum().item()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: 4096.0 * i for i in range(1, 5)}


@pytest.mark.parametrize("mode", ["inline", "thread"])
def test_both_ways_of_running_agree(mode):
    import os
    import subprocess
    import sys

    code = """
import torch
x = torch.arange(12.0, device="neuron").view(3, 4).requires_grad_()
((x @ x.t()).softmax(-1).sum() + x.sin().sum()).backward()
reference = torch.arange(12.0).view(3, 4).requires_grad_()
((reference @ reference.t()).softmax(-1).sum() + reference.sin().sum()).backward()
torch.testing.assert_close(x.grad.cpu(), reference.grad)
try:
    torch.zeros(3, device="neuron")[torch.tensor([7], device="neuron")]
    torch.neuron.synchronize()
except (IndexError, RuntimeError) as error:
    assert "index" in str(error)
else:
    raise SystemExit("no error for an index out of range")
torch.neuron.synchronize()
assert torch.ones(2, device="neuron").sum().item() == 2
"""
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        timeout=120,
        env={**os.environ, "TORCH_NEURONX_EXECUTOR": mode},
    )
