"""Matrix products at the edges of the kernels' blocks, in every layout, against float64."""

import itertools
import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from conftest import DEVICE, assert_same

SIZES = [
    (1, 1, 1),
    (1, 37, 65),
    (1, 300, 70),
    (2, 33, 31),
    (3, 129, 17),
    (4, 320, 100),
    (5, 64, 9),
    (8, 200, 130),
    (70, 65, 1),
    (600, 9, 2),
    (9, 16, 9),
    (12, 32, 32),
    (25, 400, 65),
    (100, 3, 250),
    (250, 450, 140),
    (9, 0, 9),
    (0, 4, 4),
    (4, 8, 0),
]
FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def operand(rows, columns, dtype, layout, generator):
    """Values small enough for f16; `layout` is row-major, transposed or with gaps."""
    if dtype.is_floating_point or dtype.is_complex:
        values = torch.randn(rows, columns, generator=generator, dtype=torch.float64).to(dtype)
    else:
        values = torch.randint(-9, 9, (rows, columns), generator=generator).to(dtype)
    if layout == "transposed":
        return values.t().contiguous().t()
    if layout == "gaps":
        wide = torch.zeros(rows, 2 * columns + 3, dtype=dtype)
        wide[:, 1 : 2 * columns + 1 : 2] = values
        return wide[:, 1 : 2 * columns + 1 : 2]
    return values


def on_device(tensor):
    moved = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=DEVICE)
    return moved.copy_(tensor)


def check(actual, a, b, dtype):
    exact = a.double() @ b.double()
    scale = a.double().abs() @ b.double().abs()
    step = {torch.float32: 0, torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float64: 0}[dtype]
    eps = 1e-14 if dtype == torch.float64 else 2e-6
    error = (actual.cpu().double() - exact).abs()
    assert actual.dtype == dtype
    assert bool((error <= step * exact.abs() + eps * scale + 1e-7).all()), error.max()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_edges_of_every_size_and_layout(dtype):
    generator = torch.Generator().manual_seed(1)
    layouts = ("plain", "transposed", "gaps")
    for (m, k, n), left, right in itertools.product(SIZES, layouts, layouts):
        if left == right == "gaps" and m * n > 5000:
            continue
        a, b = operand(m, k, dtype, left, generator), operand(k, n, dtype, right, generator)
        check(on_device(a) @ on_device(b), a, b, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_results_of_other_strides(dtype):
    generator = torch.Generator().manual_seed(2)
    for m, k, n in ((1, 70, 33), (4, 65, 70), (40, 30, 50), (130, 300, 90)):
        a, b = operand(m, k, dtype, "plain", generator), operand(k, n, dtype, "plain", generator)
        out = torch.empty(n, m, dtype=dtype, device=DEVICE).t()
        check(torch.mm(on_device(a), on_device(b), out=out), a, b, dtype)
        wide = torch.full((m, 2 * n), 7.0, dtype=dtype, device=DEVICE)
        check(torch.mm(on_device(a), on_device(b), out=wide[:, ::2]), a, b, dtype)
        assert bool((wide[:, 1::2] == 7).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_batches(dtype):
    for batch, m, k, n in (
        (64, 4, 4, 4),
        (7, 9, 8, 33),
        (3, 1, 64, 40),
        (24, 65, 32, 64),
        (2, 150, 260, 70),
    ):
        a, b = torch.randn(batch, m, k).to(dtype), torch.randn(batch, k, n).to(dtype)
        result = torch.bmm(a.to(DEVICE), b.to(DEVICE)).cpu()
        for i in range(batch):
            check(result[i], a[i], b[i], dtype)
        heads = b.to(DEVICE).transpose(1, 2).contiguous().transpose(1, 2)
        assert_same(torch.bmm(a.to(DEVICE), heads), result, atol=1e-2, rtol=1e-2)


def test_integers_wrap():
    for dtype in (torch.int8, torch.uint8, torch.int32, torch.int64):
        for m, k, n in ((1, 5, 3), (4, 300, 17), (33, 70, 40)):
            a = torch.randint(0, 100, (m, k)).to(dtype)
            b = torch.randint(0, 100, (k, n)).to(dtype)
            assert torch.equal((a.to(DEVICE) @ b.to(DEVICE)).cpu(), a @ b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_a_bias_is_added_before_the_one_rounding(dtype):
    generator = torch.Generator().manual_seed(3)
    for m, k, n in ((1, 64, 40), (4, 384, 96), (70, 100, 50), (256, 300, 128)):
        x = torch.randn(m, k, generator=generator).to(dtype)
        w = torch.randn(n, k, generator=generator).to(dtype)
        bias = torch.randn(n, generator=generator).to(dtype)
        actual = F.linear(x.to(DEVICE), w.to(DEVICE), bias.to(DEVICE)).cpu().double()
        exact = x.double() @ w.double().t() + bias.double()
        scale = x.double().abs() @ w.double().abs().t() + bias.double().abs()
        step = 2.0**-8 if dtype == torch.bfloat16 else 2.0**-11
        assert bool(((actual - exact).abs() <= step * exact.abs() + 2e-6 * scale).all())
        # No copies of the operands in f32: as torch.baddbmm and addmm with other factors.
        actual = torch.addmm(bias.to(DEVICE), x.to(DEVICE), w.to(DEVICE).t(), beta=2, alpha=0.5)
        exact = 0.5 * (x.double() @ w.double().t()) + 2 * bias.double()
        error = (actual.cpu().double() - exact).abs()
        assert bool((error <= step * exact.abs() + 4e-6 * scale).all())


def test_infinity_and_nan_pass():
    for dtype in (torch.float32, torch.bfloat16):
        for m in (1, 4, 20):
            a, b = torch.ones(m, 37, dtype=dtype), torch.ones(37, 21, dtype=dtype)
            b[36, 3], b[0, 5] = float("inf"), float("nan")
            for right in (b, b.t().contiguous().t()):
                assert_same(on_device(a) @ on_device(right), a @ b)


PROGRAM = """
import hashlib, torch
torch.manual_seed(0)
digest = hashlib.sha256()
for dtype in (torch.float32, torch.bfloat16, torch.float64):
    for m, k, n in ((1, 700, 900), (4, 320, 1280), (256, 300, 260), (500, 400, 500)):
        a, b = torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype)
        digest.update((a.to("neuron") @ b.to("neuron").t()).cpu().double().numpy().tobytes())
        digest.update((a.to("neuron") @ b.t().contiguous().to("neuron")).cpu().double().numpy()
                      .tobytes())
print(digest.hexdigest())
"""


def test_threads_do_not_change_a_bit():
    digests = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "TORCH_NEURONX_NUM_THREADS": threads},
        ).stdout.split()[-1]
        for threads in ("1", "2", "5")
    }
    assert len(digests) == 1
