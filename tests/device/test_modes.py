"""Process-wide modes, sharing of memory with other libraries, and many threads and devices."""

import os
import subprocess
import sys
import threading

import pytest
import torch
from conftest import DEVICE


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_unwritten_memory_is_filled_in_deterministic_mode(deterministic):
    assert torch.empty(5, device=DEVICE).isnan().all()
    assert torch.empty(3, dtype=torch.int32, device=DEVICE).eq(2**31 - 1).all()
    assert torch.empty_strided((2, 3), (1, 2), device=DEVICE).isnan().all()
    x = torch.ones(2, device=DEVICE).resize_(6)
    assert x[:2].eq(1).all() and x[2:].isnan().all()
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        torch.full((5,), 1.0, device=DEVICE)
        torch.empty(5, device=DEVICE)
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True


def test_scatters_repeat_in_deterministic_mode(deterministic):
    index = torch.randint(0, 5, (1000,)).to(DEVICE)
    values = torch.randn(1000).to(DEVICE)
    sums = [torch.zeros(5, device=DEVICE).index_add_(0, index, values).cpu() for _ in range(3)]
    assert torch.equal(sums[0], sums[1]) and torch.equal(sums[0], sums[2])


def test_dlpack_shares_memory():
    x = torch.arange(4.0, device=DEVICE)
    y = torch.from_dlpack(x)
    assert y.device == x.device
    y[0] = 9
    assert x.tolist() == [9, 1, 2, 3]
    y.record_stream(torch.neuron.Stream())
    del x
    assert (y * 2).tolist() == [18, 2, 4, 6]
    assert y.cpu().tolist() == [9, 1, 2, 3] and y.clone().resize_(6)[:4].tolist() == [9, 1, 2, 3]


def test_equal_compares_values_of_any_dtypes():
    x = torch.ones(2, device=DEVICE)
    assert torch.equal(x, x.half()) and not torch.equal(x, torch.zeros_like(x).half())


def test_many_threads_on_streams_of_their_own():
    failures = []

    def run(number):
        try:
            with torch.neuron.stream(torch.neuron.Stream()):
                x = torch.full((64, 64), float(number), device=DEVICE)
                for _ in range(20):
                    total = (x @ x).sum()
                assert total.item() == 64.0**3 * number * number
        except BaseException as error:  # Reported by the main thread.
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_pinned_batches_of_workers():
    data = torch.utils.data.TensorDataset(torch.arange(40.0).reshape(20, 2), torch.arange(20))
    loader = torch.utils.data.DataLoader(data, batch_size=8, pin_memory=True, num_workers=2)
    seen = 0
    for x, y in loader:
        assert x.is_pinned() and y.is_pinned()
        seen += x.to(DEVICE, non_blocking=True).sum().item()
    assert seen == sum(range(40))


@pytest.mark.parametrize(
    ("variables", "count"),
    [
        ({"NEURON_LOGICAL_NC_CONFIG": "1"}, 128),
        ({"NEURON_RT_NUM_CORES": "4"}, 4),
        ({"NEURON_RT_VISIBLE_CORES": "1-3"}, 3),
    ],
)
def test_number_of_devices(variables, count):
    code = (
        "import torch; n = torch.neuron.device_count();"
        "print(n, (torch.ones(3, device=f'neuron:{n - 1}') + 1).sum().item())"
    )
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("NEURON_RT", "NEURON_SIM"))}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**plain, **variables}
    )
    assert done.stdout.split() == [str(count), "6.0"], done.stderr
