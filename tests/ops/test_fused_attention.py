"""scaled_dot_product_attention in every form runs as one fused operator and agrees with the CPU."""

import pytest
import torch
import torch.nn.functional as F
import torch_neuronx
from conftest import DEVICE, assert_same

FUSED = "aten::_scaled_dot_product_fused_attention_overrideable"
SHAPES = {  # query, key, width of the values, grouped heads
    "plain": ((2, 4, 7, 8), (2, 4, 9, 8), 8, False),
    "long": ((1, 2, 300, 8), (1, 2, 1100, 8), 8, False),
    "other width": ((2, 4, 70, 8), (2, 4, 90, 8), 5, False),
    "groups": ((2, 6, 5, 16), (2, 2, 33, 16), 16, True),
    "groups, other width": ((2, 6, 5, 16), (2, 2, 33, 16), 7, True),
    "three dims": ((4, 7, 8), (4, 9, 8), 8, False),
    "matrices": ((7, 8), (9, 8), 3, False),
}
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 6e-2, torch.float16: 8e-3}


def mask_of(kind, query, key):
    length, span = query[-2], key[-2]
    if kind == "bool":
        mask = torch.rand(length, span) > 0.3
        mask[0] = True
        return mask
    return torch.randn(1, span) if kind == "row" else torch.randn(*query[:-2], length, span)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("mask", [None, "causal", "bool", "full", "row"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_form_is_fused(shape, mask, dtype):
    query, key, width, groups = SHAPES[shape]
    if shape == "long" and (mask == "full" or dtype == torch.float16):
        pytest.skip("the same kernel, and slow")
    inputs = [torch.randn(size) for size in (query, key, (*key[:-1], width))]
    added = mask_of(mask, query, key) if mask not in (None, "causal") else None
    cotangent = torch.randn(*query[:-1], width)
    results = []
    for device, precision in (("cpu", torch.float64), (DEVICE, dtype)):
        leaves = [t.to(dtype).to(device, precision).requires_grad_() for t in inputs]
        bias = None
        if added is not None:
            bias = added.to(device) if mask == "bool" else added.to(dtype).to(device, precision)
            if mask != "bool":
                leaves.append(bias.requires_grad_())
        torch_neuronx.reset_op_stats()
        out = F.scaled_dot_product_attention(
            *leaves[:3], attn_mask=bias, is_causal=mask == "causal", enable_gqa=groups
        )
        if device is DEVICE:
            assert FUSED in torch_neuronx.get_executed_ops()
            assert not torch_neuronx.get_fallback_ops()
        grads = torch.autograd.grad(out, leaves, cotangent.to(dtype).to(device, precision))
        results.append([out.detach(), *grads])
    for expected, actual in zip(*results, strict=True):
        scale = max(1.0, expected.abs().max().item())
        limit = TOLERANCE[dtype] * scale
        assert_same(actual.double(), expected, rtol=0, atol=limit)


def test_dropout_keeps_the_mean_and_repeats_under_a_seed():
    zeros = torch.zeros(1, 2, 64, 64, device=DEVICE)
    values = torch.eye(64, device=DEVICE).expand(1, 2, 64, 64)

    def weights(p):
        torch.manual_seed(11)
        return F.scaled_dot_product_attention(zeros, zeros, values, dropout_p=p)

    found = weights(0.3).cpu()
    assert torch.equal(found, weights(0.3).cpu())
    assert abs((found == 0).float().mean().item() - 0.3) < 0.03
    kept = found[found != 0]
    assert_same(kept, torch.full_like(kept, 1 / 64 / 0.7))
    assert weights(1.0).abs().max().item() == 0
    torch.manual_seed(12)
    other = F.scaled_dot_product_attention(zeros, zeros, values, dropout_p=0.3).cpu()
    assert not torch.equal(found, other)


def test_gradients_see_the_mask_that_dropout_drew():
    inputs = [
        torch.randn(1, 2, 5, 3, device=DEVICE, dtype=torch.float64, requires_grad=True)
        for _ in range(3)
    ]

    def attention(query, key, value):
        torch.manual_seed(5)
        return F.scaled_dot_product_attention(query, key, value, dropout_p=0.3)

    assert torch.autograd.gradcheck(attention, inputs, check_batched_grad=False)


@pytest.mark.parametrize("groups", [False, True])
def test_second_derivatives(groups):
    heads = 1 if groups else 2
    query = torch.randn(1, 2, 4, 3, device=DEVICE, dtype=torch.float64, requires_grad=True)
    key, value = (
        torch.randn(1, heads, 5, 3, device=DEVICE, dtype=torch.float64, requires_grad=True)
        for _ in range(2)
    )
    bias = torch.randn(4, 5, device=DEVICE, dtype=torch.float64, requires_grad=True)

    def attention(query, key, value, bias):
        return F.scaled_dot_product_attention(query, key, value, bias, enable_gqa=groups)

    assert torch.autograd.gradgradcheck(attention, (query, key, value, bias))


def test_memory_is_linear_in_the_length():
    query, key = (torch.randn(1, 1, 4096, 8, device=DEVICE, requires_grad=True) for _ in range(2))
    value = torch.randn(1, 1, 4096, 4, device=DEVICE, requires_grad=True)
    torch.neuron.reset_peak_memory_stats()
    before = torch.neuron.memory_allocated()
    F.scaled_dot_product_attention(query, key, value, dropout_p=0.1).sum().backward()
    assert torch.neuron.max_memory_allocated() - before < 4096 * 4096


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_small_gradients_of_halves_survive(dtype):
    """Gradients of queries are differences of numbers that are much larger."""
    inputs = [torch.randn(2, 4, 4, 8).to(dtype) * 3 for _ in range(4)]
    grads = []
    for device, precision in (("cpu", torch.float64), (DEVICE, dtype)):
        leaves = [t.to(device, precision).requires_grad_() for t in inputs[:3]]
        out = F.scaled_dot_product_attention(*leaves, is_causal=True)
        grads.append(torch.autograd.grad(out, leaves, inputs[3].to(device, precision)))
    for expected, actual in zip(*grads, strict=True):
        limit = 2 * torch.finfo(dtype).eps
        assert_same(actual.double(), expected, rtol=limit, atol=limit * expected.abs().max() / 8)
