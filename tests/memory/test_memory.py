import gc

import pytest
import torch


def test_allocated_bytes_follow_live_tensors():
    before = torch.neuron.memory_allocated()
    x = torch.empty(1 << 20, device="neuron")
    assert torch.neuron.memory_allocated() - before >= 4 << 20
    del x
    assert torch.neuron.memory_allocated() == before


def test_freed_memory_is_reused():
    x = torch.empty(1 << 20, device="neuron")
    reserved = torch.neuron.memory_reserved()
    for _ in range(100):
        x = torch.empty(1 << 20, device="neuron")
    assert torch.neuron.memory_reserved() <= reserved + (64 << 20)
    del x


def test_out_of_memory_says_what_and_how_much_and_recovers():
    with pytest.raises(torch.OutOfMemoryError, match="GiB"):
        torch.empty(1 << 45, dtype=torch.uint8, device="neuron")
    assert torch.ones(3, device="neuron").sum().item() == 3


def test_varying_shapes_do_not_grow_memory():
    sizes = torch.randint(1, 5000, (1500,)).tolist()
    for n in sizes[:300]:
        torch.ones(n, device="neuron").mul(2)
    gc.collect()
    live, reserved = torch.neuron.memory_allocated(), torch.neuron.memory_reserved()
    for n in sizes[300:]:
        torch.ones(n, device="neuron").mul(2)
    gc.collect()
    assert torch.neuron.memory_allocated() == live
    assert torch.neuron.memory_reserved() <= reserved + (4 << 20)


def test_storage_resize_keeps_the_prefix():
    x = torch.arange(6.0, device="neuron")
    storage = x.untyped_storage()
    size = storage.nbytes()
    storage.resize_(2 * size)
    assert x.tolist() == [0, 1, 2, 3, 4, 5]
    storage.resize_(0)
    assert storage.nbytes() == 0
    storage.resize_(size)


def test_snapshot_counts_what_is_allocated():
    x = torch.empty(1 << 22, device="neuron")
    blocks = [b for s in torch.neuron.memory.memory_snapshot() for b in s["blocks"]]
    assert sum(b["size"] for b in blocks if b["state"] == "active_allocated") == (
        torch.neuron.memory_allocated()
    )
    del x


def test_pinned_memory():
    x = torch.randn(100).pin_memory()
    assert x.is_pinned() and x[10:].is_pinned() and not torch.randn(3).is_pinned()
    y = x.to("neuron", non_blocking=True)
    torch.neuron.synchronize()
    assert torch.equal(y.cpu(), x)


def test_source_may_change_after_a_blocking_copy():
    x = torch.ones(1000)
    y = x.to("neuron")
    x.zero_()
    assert y.sum().item() == 1000


def test_loader_pins_batches():
    data = torch.utils.data.TensorDataset(torch.arange(12.0))
    for (batch,) in torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True):
        assert batch.is_pinned()
        assert batch.to("neuron", non_blocking=True).sum().item() == batch.sum().item()
