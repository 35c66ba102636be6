import pytest
import torch
import torch.nn.functional as F
from conftest import assert_same, both


def gradients(function, *inputs):
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    function(*leaves).sum().backward()
    return [t.grad for t in leaves]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_attention_and_its_gradients(causal, dtype):
    q, k, v = (torch.randn(2, 3, 17, 16).to(dtype) for _ in range(3))

    def function(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal) * 2

    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}
    assert_same(
        gradients(function, *(both(t)[0] for t in (q, k, v))),
        gradients(function, q, k, v),
        **tolerance,
    )


def test_attention_with_a_mask_and_a_row_without_keys():
    q, k, v = (torch.randn(1, 2, 4, 8) for _ in range(3))
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    mask[2] = False
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    actual = F.scaled_dot_product_attention(
        *(both(t)[0] for t in (q, k, v)), attn_mask=both(mask)[0]
    )
    assert_same(actual, expected)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.layer_norm(x, x.shape[-1:]).sin(),
        lambda x: F.group_norm(x[None], 2).sin(),
        lambda x: x.softmax(-1).log(),
        lambda x: F.embedding(torch.tensor([[0, 2, 2]], device=x.device), x).cos(),
        lambda x: x[torch.tensor([1, 1, 0], device=x.device)].sin(),
        lambda x: x.cumsum(0) * x,
        lambda x: torch.cat([x, x.t()[: x.shape[0], :4]], 1).exp(),
        lambda x: x.std(0) + x.prod(0),
        lambda x: F.conv1d(x[None], torch.ones(2, 4, 3, device=x.device)).sin(),
        lambda x: F.max_pool1d(x[None], 2),
        lambda x: torch.linalg.norm(x, dim=1),
    ],
    ids=range(11),
)
def test_gradients(function):
    moved, host = both(torch.randn(4, 6) + 0.1)
    assert_same(gradients(function, moved), gradients(function, host), rtol=1e-4, atol=1e-5)


def test_gradcheck_in_double():
    x = torch.randn(3, 4, dtype=torch.float64, device="neuron", requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: (t.tanh() @ t.t()).logsumexp(-1), (x,))


def test_gradients_accumulate_in_place():
    x = torch.ones(3, device="neuron", requires_grad=True)
    (x * 2).sum().backward()
    grad, pointer = x.grad, x.grad.data_ptr()
    (x * 3).sum().backward()
    assert x.grad is grad and grad.data_ptr() == pointer and grad.tolist() == [5, 5, 5]
