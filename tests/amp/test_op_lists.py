"""Autocast treats every operator as torch's own lists for CUDA say."""

import pytest
import torch
from conftest import DEVICE
from torch.testing._internal.autocast_test_lists import AutocastTestLists

LISTS = AutocastTestLists(torch.device("neuron"))
# The entry of einsum has subscripts that do not fit its tensors.
NOT_HERE = {"cudnn_convolution", "cudnn_convolution_transpose", "einsum"}


def cases():
    """(name, module or None for a method, arguments, keyword arguments, expected dtype or None)"""
    half, single = torch.float16, torch.float32
    for name, module, dtype in (
        ("torch_fp16", torch, half),
        ("nn_fp16", torch._C._nn, half),
        ("torch_fp32", torch, single),
        ("nn_fp32", torch._C._nn, single),
        ("methods_fp16", None, half),
        ("methods_fp32", None, single),
    ):
        for op, arguments, *rest in getattr(LISTS, name):
            options = rest[0] if rest and isinstance(rest[0], dict) else {}
            yield f"{name}-{op}", module, op, arguments, options, dtype
    for op, arguments in LISTS.torch_need_autocast_promote:
        yield f"promote-{op}", torch, op, arguments, {}, single
    for op, arguments, dtype in LISTS.torch_expect_builtin_promote:
        yield f"builtin-{op}", torch, op, arguments, {}, dtype
    for op, arguments, dtype in LISTS.methods_expect_builtin_promote:
        yield f"method-{op}", None, op, arguments, {}, dtype


ALL = {name: rest for name, *rest in cases() if rest[1] not in NOT_HERE}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ALL)
def test_operator(name):
    module, op, arguments, options, dtype = ALL[name]
    function = getattr(torch.Tensor if module is None else module, op)
    with torch.autocast("neuron", dtype=torch.float16):
        out = function(*arguments, **options)
    first = out[0] if isinstance(out, (tuple, list)) else out
    if isinstance(first, torch.Tensor) and isinstance(dtype, torch.dtype):
        assert first.dtype == dtype and first.device.type == "neuron"
    elif isinstance(dtype, type):
        assert isinstance(first, dtype)


@pytest.mark.parametrize("case", LISTS.banned, ids=lambda case: case[0])
def test_banned(case):
    op, arguments, module = case
    with (
        torch.autocast("neuron", dtype=torch.float16),
        pytest.raises(RuntimeError, match="unsafe to autocast"),
    ):
        getattr(module, op)(*arguments)


def test_aliases_of_this_device():
    class Square(torch.autograd.Function):
        @staticmethod
        @torch.neuron.amp.custom_fwd(cast_inputs=torch.float32)
        def forward(ctx, x):
            assert x.dtype == torch.float32 and not torch.is_autocast_enabled("neuron")
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @torch.neuron.amp.custom_bwd
        def backward(ctx, gradient):
            return 2 * ctx.saved_tensors[0] * gradient

    x = torch.full((2,), 3.0, dtype=torch.float16, device=DEVICE, requires_grad=True)
    with torch.neuron.amp.autocast(dtype=torch.float16):
        Square.apply(x).sum().backward()
    assert x.grad.tolist() == [6, 6]
    scaler = torch.neuron.amp.GradScaler()
    weight = torch.nn.Parameter(torch.ones(2, device=DEVICE))
    optimizer = torch.optim.AdamW([weight], 0.1, fused=True)
    scaler.scale((weight * float("inf")).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.tolist() == [1, 1] and scaler.get_scale() == 32768
