"""The names that get_executed_ops() gives, also of what torch takes apart before the device."""

import pytest
import torch
import torch.nn.functional as F
import torch_neuronx
from conftest import DEVICE


def tensor(*shape):
    return torch.randn(*shape).to(DEVICE)


def leaf(*shape):
    return tensor(*shape).requires_grad_()


INDEX = [0, 2]
CALLS = {
    "linear": lambda: F.linear(tensor(4, 4), tensor(4, 4), tensor(4)),
    "linear_backward": lambda: F.linear(leaf(4, 4), leaf(4, 4)).sum().backward(),
    "matmul": lambda: torch.matmul(tensor(4, 4), tensor(4, 4)),
    "isfinite": lambda: torch.isfinite(tensor(4)),
    "isinf": lambda: torch.isinf(tensor(4)),
    "isneginf": lambda: torch.isneginf(tensor(4)),
    "one_hot": lambda: F.one_hot(torch.tensor(INDEX, device=DEVICE), 4),
    "repeat": lambda: tensor(4).repeat(2),
    "repeat_interleave.Tensor": lambda: torch.repeat_interleave(torch.tensor(INDEX, device=DEVICE)),
    "stack": lambda: torch.stack([tensor(4), tensor(4)]),
    "floor_divide": lambda: torch.floor_divide(tensor(4), tensor(4)),
    "index_select_backward": lambda: (
        torch.index_select(leaf(4, 4), 0, torch.tensor(INDEX, device=DEVICE)).sum().backward()
    ),
    "value_selecting_reduction_backward": lambda: leaf(4, 4).max(1).values.sum().backward(),
    "addmv": lambda: torch.addmv(tensor(4), tensor(4, 4), tensor(4)),
    "zeros": lambda: torch.zeros(3, device=DEVICE),
    "ones": lambda: torch.ones(3, device=DEVICE),
    "full": lambda: torch.full((3,), 2.0, device=DEVICE),
    "eye": lambda: torch.eye(3, device=DEVICE),
    "ones_like": lambda: torch.ones_like(tensor(3)),
    "new_empty": lambda: tensor(3).new_empty(3),
    "scalar_tensor": lambda: torch.scalar_tensor(3.0, device=DEVICE),
    "cross_entropy_loss": lambda: F.cross_entropy(
        tensor(2, 4), torch.tensor([0, 1], device=DEVICE)
    ),
    "_scaled_dot_product_fused_attention_overrideable": lambda: F.scaled_dot_product_attention(
        tensor(1, 2, 8, 16), tensor(1, 2, 8, 16), tensor(1, 2, 8, 16)
    ),
    "_scaled_dot_product_fused_attention_overrideable_backward": lambda: (
        F.scaled_dot_product_attention(leaf(1, 2, 8, 16), tensor(1, 2, 8, 16), leaf(1, 2, 8, 16))
        .sum()
        .backward()
    ),
    "_fused_rms_norm": lambda: F.rms_norm(tensor(4, 4), (4,), tensor(4)),
    "_fused_rms_norm_backward": lambda: F.rms_norm(leaf(4, 4), (4,), leaf(4)).sum().backward(),
    "_has_compatible_shallow_copy_type": lambda: torch.nn.Linear(2, 2).to(DEVICE).to("neuron"),
    "_local_scalar_dense": lambda: tensor(1).item(),
    "batch_norm_stats": lambda: torch.batch_norm_stats(tensor(4, 4), 1e-5),
    "_grouped_mm": lambda: torch._grouped_mm(
        tensor(8, 16).bfloat16(),
        tensor(2, 16, 16).bfloat16(),
        offs=torch.tensor([3, 8], dtype=torch.int32, device=DEVICE),
    ),
    "native_dropout": lambda: torch.native_dropout(tensor(4), 0.5, True),
    "nonzero_static": lambda: torch.nonzero_static(tensor(4), size=4),
    "histc": lambda: torch.histc(tensor(4), 5),
    "empty": lambda: torch.empty(3, device=DEVICE),
    "empty_strided": lambda: torch.empty_strided((3,), (1,), device=DEVICE),
    "empty_like": lambda: torch.empty_like(tensor(3)),
    "resize_": lambda: torch.empty(3, device=DEVICE).resize_(4),
    "clone": lambda: tensor(3).clone(),
    "copy_": lambda: torch.empty(3, device=DEVICE).copy_(torch.ones(3)),
    "_to_copy": lambda: tensor(3).half(),
    "_foreach_add_": lambda: torch._foreach_add_([tensor(3)], 1.0),
    "convolution_backward": lambda: F.conv2d(leaf(1, 2, 5, 5), leaf(3, 2, 3, 3)).sum().backward(),
    "where.self": lambda: torch.where(tensor(3) > 0, tensor(3), tensor(3)),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_name_is_recorded(name):
    CALLS[name]()
    torch.neuron.synchronize()
    executed, fallen_back = torch_neuronx.get_executed_ops(), torch_neuronx.get_fallback_ops()
    assert isinstance(executed, list) and fallen_back == []
    full = f"aten::{name}"
    assert any(n == full or n.startswith(f"{full}.") for n in executed), executed


def test_counted_composites_keep_their_derivatives():
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    xd, wd = (t.detach().to(DEVICE).requires_grad_() for t in (x, w))
    for function in (F.linear, lambda a, b: torch.matmul(a, b.t()).square().sum(0)):
        expected = torch.autograd.grad(function(x, w).pow(2).sum(), (x, w), create_graph=True)
        actual = torch.autograd.grad(function(xd, wd).pow(2).sum(), (xd, wd), create_graph=True)
        twice = torch.autograd.grad(expected[0].sum(), w)[0]
        torch.testing.assert_close(
            torch.autograd.grad(actual[0].sum(), wd)[0].cpu(), twice, rtol=1e-4, atol=1e-3
        )
    jvp = torch.func.jvp(lambda t: F.linear(t, wd), (xd,), (torch.ones_like(xd),))[1]
    torch.testing.assert_close(jvp.cpu(), F.linear(torch.ones(3, 4), w))
    batched = torch.func.vmap(lambda t: F.linear(t, wd))(xd)
    torch.testing.assert_close(batched.cpu(), F.linear(x, w))


def test_counts_and_clearing():
    x = torch.ones(2, device=DEVICE)
    torch_neuronx.clear_op_tracking()
    x + 1
    x + 2
    assert torch_neuronx.get_op_counts()["executed"]["aten::add.Tensor"] == 2
    torch_neuronx.clear_op_tracking()
    assert torch_neuronx.get_executed_ops() == []
