"""A loop over shapes that are always new: the caches are bounded, and nothing else grows."""

import ctypes
import gc
import random

import torch
import torch.nn.functional as F


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks")
    ] + [(name, ctypes.c_size_t) for name in ("in_use", "free", "keepcost")]


def _host_bytes() -> int:
    gc.collect()
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = _Mallinfo
    info = library.mallinfo2()
    return info.in_use + info.hblkhd


def test_new_shapes_for_ever_fill_no_memory():
    rng = random.Random(0)
    weight = torch.randn(16, 16, device="neuron", requires_grad=True)

    def step():
        x = torch.empty(rng.randrange(1, 400), rng.randrange(1, 40), 16, device="neuron")
        y = F.layer_norm(torch.cat([(x @ weight).softmax(-1), x * 2], 1), (16,))
        y.sum().backward()
        weight.grad = None

    for _ in range(1200):  # More programs than the caches hold.
        step()
    torch.neuron.synchronize()
    host, device = _host_bytes(), torch.neuron.memory_reserved()
    for _ in range(1200):
        step()
    torch.neuron.synchronize()
    assert torch.neuron.memory_reserved() <= device + (4 << 20)
    assert _host_bytes() <= host + (3 << 20)
    assert torch.neuron.memory_allocated() < 1 << 20
