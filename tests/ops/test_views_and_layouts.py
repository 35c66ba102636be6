"""Layouts go through one path for all operators: these tests generate them."""

import pytest
import torch
from conftest import assert_same, both
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@st.composite
def laid_out_tensors(draw, dtype=torch.float32):
    """A view: permuted, sliced with steps, expanded, with an offset, maybe empty or 0-dim."""
    rank = draw(st.integers(0, 4))
    sizes = [draw(st.integers(0 if draw(st.booleans()) else 1, 5)) for _ in range(rank)]
    steps = [draw(st.integers(1, 3)) for _ in range(rank)]
    base = torch.randn([s * k + 1 for s, k in zip(sizes, steps, strict=True)])
    base = (base * 10).to(dtype)
    for dim, (size, step) in enumerate(zip(sizes, steps, strict=True)):
        base = base.narrow(dim, 0 if draw(st.booleans()) else 1, base.shape[dim] - 1)
        base = base[(slice(None),) * dim + (slice(0, size * step, step),)]
    if rank and draw(st.booleans()):
        base = base.permute(*draw(st.permutations(range(rank))))
    if rank and draw(st.booleans()):
        base = base.unsqueeze(0).expand(draw(st.integers(1, 3)), *base.shape)
    return base


FUNCTIONS = {
    "add": lambda x: x + x,
    "mul by number": lambda x: x * 3,
    "exp": lambda x: (x / 10).exp(),
    "sum": lambda x: x.sum(),
    "sum of last": lambda x: x.sum(-1) if x.dim() else x.sum(),
    "sum of first": lambda x: x.sum(0) if x.dim() else x.sum(),
    "softmax": lambda x: x.softmax(-1) if x.dim() else x,
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.contiguous(),
    "bf16 and back": lambda x: x.to(torch.bfloat16).float(),
    "compare": lambda x: x > 0,
    "where": lambda x: torch.where(x > 0, x, -x),
    "cat": lambda x: torch.cat([x, x], -1) if x.dim() else x,
    "flip": lambda x: x.flip(0) if x.dim() else x,
    "cumsum": lambda x: x.cumsum(-1) if x.dim() else x,
    "max": lambda x: x.amax(-1) if x.dim() and x.shape[-1] else x,
}


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(x=laid_out_tensors(), name=st.sampled_from(sorted(FUNCTIONS)))
def test_functions_of_any_layout(x, name):
    moved, host = both(x)
    assert_same(FUNCTIONS[name](moved), FUNCTIONS[name](host))


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(x=laid_out_tensors(), data=st.data())
def test_in_place_writes_reach_the_base_and_nothing_else(x, data):
    if x.dim() and 0 in x.stride():
        x = x.contiguous()
    base = x.clone(memory_format=torch.preserve_format)
    moved, host = both(base)
    operation = data.draw(st.sampled_from(["add_", "mul_", "zero_", "copy_", "fill_", "sin_"]))
    index = data.draw(st.integers(0, max(0, x.dim() - 1)))
    for target in (moved, host):
        view = target.transpose(0, index)[::2] if target.dim() else target
        if operation == "copy_":
            view.copy_(torch.arange(max(1, view.numel()))[: view.numel()].view(view.shape))
        elif operation == "fill_":
            view.fill_(7)
        elif operation in ("add_", "mul_"):
            getattr(view, operation)(2)
        else:
            getattr(view, operation)()
    assert_same(moved, host)


DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]


@pytest.mark.parametrize("source", DTYPES, ids=str)
@pytest.mark.parametrize("target", DTYPES, ids=str)
def test_conversions(source, target):
    values = torch.tensor([0.0, 1.0, 2.5, 100.0, 7.75, 0.3]).to(source)
    moved, host = both(values)
    assert_same(moved.to(target), host.to(target))


@pytest.mark.parametrize("left", DTYPES, ids=str)
@pytest.mark.parametrize("right", DTYPES, ids=str)
def test_promotion(left, right):
    a, b = torch.tensor([1, 0, 3]).to(left), torch.tensor([1, 1, 2]).to(right)
    zero_dim = b[2]
    for function in (torch.add, torch.mul, torch.true_divide, torch.eq, torch.maximum):
        assert_same(function(both(a)[0], both(b)[0]), function(a, b))
        assert_same(function(both(a)[0], both(zero_dim)[0]), function(a, zero_dim))
        assert_same(function(both(a)[0], zero_dim), function(a, zero_dim))


@pytest.mark.parametrize("number", [True, 2, 2.5, -1])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_python_numbers_do_not_promote_within_a_category(dtype, number):
    x = torch.tensor([0, 1, 5]).to(dtype)
    for function in (torch.add, torch.mul, torch.eq):
        assert_same(function(both(x)[0], number), function(x, number))


def test_out_is_resized_and_keeps_its_strides():
    x, y = torch.randn(3, 4, device="neuron"), torch.empty(0, device="neuron")
    torch.add(x, x, out=y)
    assert y.shape == (3, 4)
    out = torch.empty(4, 3, device="neuron").t()
    torch.add(x, x, out=out)
    assert out.stride() == (1, 3)
    assert_same(out, x * 2)


def test_overlapping_destinations_are_refused():
    x = torch.zeros(1, device="neuron").expand(3)
    with pytest.raises(RuntimeError, match="single memory location"):
        x.add_(1)
    y = torch.zeros(10, device="neuron")
    with pytest.raises(RuntimeError, match="some elements of the input tensor"):
        torch.add(y[:5], 1, out=y[2:7])
    for device in ("neuron", "cpu"):
        square = torch.arange(9.0, device=device).view(3, 3)
        with pytest.raises(RuntimeError, match="some elements of the input tensor"):
            square.copy_(square.t())


def test_channels_last_is_preserved():
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    moved, host = both(x)
    assert (moved * 2).stride() == (host * 2).stride()
    assert_same(moved * 2, host * 2)
    assert moved.cpu().stride() == host.stride()


def test_conj_and_neg_bits():
    x = torch.randn(4, dtype=torch.complex64)
    moved = x.to("neuron")
    assert_same(moved.conj().imag, x.conj().imag)
    assert_same(moved.conj().resolve_conj(), x.conj().resolve_conj())
    assert_same(moved.conj() + 1, x.conj() + 1)
