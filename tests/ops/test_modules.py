"""Every module of torch.nn on PyTorch's own samples: results, gradients and buffers as on the CPU.

Inputs come contiguous, with gaps, and in channels_last; modules train and evaluate.
"""

import copy

import pytest
import torch
from torch.testing._internal.common_modules import module_db
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = "neuron"
# What is drawn at random differs by device; lazy modules draw their parameters at the first call.
DRAWN = ("Dropout", "RReLU", "FractionalMaxPool", "Lazy")
# The CPU's CTC loss reads past lengths that have gaps.
CONTIGUOUS_ONLY = ("nn.CTCLoss",)


def tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def on(device, tree):
    def move(leaf):
        if not isinstance(leaf, torch.Tensor):
            return leaf
        moved = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=device)
        return moved.copy_(leaf.detach()).requires_grad_(leaf.requires_grad)

    return tree_map(move, tree)


def with_gaps(tree):
    def spread(leaf):
        if not isinstance(leaf, torch.Tensor) or leaf.dim() == 0:
            return leaf
        wide = torch.zeros(*leaf.shape, 2, dtype=leaf.dtype)
        wide[..., 0] = leaf.detach()
        return wide[..., 0].requires_grad_(leaf.requires_grad)

    return tree_map(spread, tree)


def channels_last(tree):
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}

    def arrange(leaf):
        if not isinstance(leaf, torch.Tensor) or leaf.dim() not in formats:
            return leaf
        arranged = leaf.detach().to(memory_format=formats[leaf.dim()])
        return arranged.requires_grad_(leaf.requires_grad)

    return tree_map(arrange, tree)


def run(module, device, args, kwargs):
    """Results, gradients of all inputs and parameters, and buffers."""
    args, kwargs = on(device, args), on(device, kwargs)
    module.to(device)
    results = tensors(module(*args, **kwargs))
    wanted = [x for x in [*tensors((args, kwargs)), *module.parameters()] if x.requires_grad]
    slopes = [x for x in results if x.requires_grad]
    gradients = []
    if slopes and wanted:
        seeds = [
            torch.linspace(0.5, 1.5, x.numel(), dtype=x.dtype).view(x.shape).to(device)
            for x in slopes
        ]
        gradients = torch.autograd.grad(slopes, wanted, seeds, allow_unused=True)
    return results, list(gradients), [x.detach() for x in module.buffers()]


@pytest.mark.parametrize(
    "info",
    [i for i in module_db if not any(word in i.name for word in DRAWN)],
    ids=lambda i: i.formatted_name,
)
def test_like_on_the_cpu(info):
    checked = 0
    for training in (True, False) if info.train_and_eval_differ else (True,):
        samples = info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
        )
        for sample in samples:
            if sample.forward_input is None:
                continue
            build, call = sample.constructor_input, sample.forward_input
            for layout in (None, with_gaps, channels_last):
                given = (call.args, call.kwargs)
                if layout is not None:
                    if layout is with_gaps and info.name in CONTIGUOUS_ONLY:
                        continue
                    if layout is channels_last and not any(
                        x.dim() in (4, 5) for x in tensors(given)
                    ):
                        continue
                    given = layout(given)
                modules = []
                for _ in range(2):
                    torch.manual_seed(0)
                    modules.append(info.module_cls(*build.args, **build.kwargs).train(training))
                try:
                    expected = run(modules[0], "cpu", *given)
                except RuntimeError:  # Not for the CPU, so nothing to compare with.
                    continue
                actual = run(modules[1], DEVICE, *given)
                where = f"{info.name} {build} {layout.__name__ if layout else ''} {training}"
                for ours, theirs in zip(actual, expected, strict=True):
                    for x, y in zip(ours, theirs, strict=True):
                        assert (x is None) == (y is None), where
                        if x is None:
                            continue
                        assert x.device.type == DEVICE, where
                        # Sums of a few hundred float32 products, in another order.
                        torch.testing.assert_close(
                            x.cpu(), y, rtol=1e-4, atol=2e-4, equal_nan=True,
                            msg=lambda text, where=where: f"{where}: {text}",
                        )  # fmt: skip
                checked += 1
    assert checked > 0


@pytest.mark.parametrize("shape", [(10,), (1, 10), (3, 10)])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_multilabel_margin_loss_shapes(shape, reduction):
    x, target = torch.randn(shape), torch.randint(0, 10, shape)
    loss = torch.nn.MultiLabelMarginLoss(reduction=reduction)
    torch.testing.assert_close(loss(x.to(DEVICE), target.to(DEVICE)).cpu(), loss(x, target))


@pytest.mark.parametrize("kind", [torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell])
@pytest.mark.parametrize("bias", [True, False])
def test_compiled_cells(kind, bias):
    cell = kind(3, 4, bias=bias)
    moved = copy.deepcopy(cell).to(DEVICE)
    x = torch.randn(2, 3)
    gradients = []
    for run, device in ((cell, "cpu"), (torch.compile(moved, backend="neuron"), DEVICE)):
        leaf = x.to(device, copy=True).requires_grad_()
        sum(out.sum() for out in tensors(run(leaf))).backward()
        gradients.append(leaf.grad.cpu())
    torch.testing.assert_close(gradients[1], gradients[0])


def test_compiled_convolutions_keep_channels_last():
    x = torch.randn(2, 3, 8, 8, device=DEVICE).to(memory_format=torch.channels_last)
    conv = torch.nn.Conv2d(3, 4, 3, device=DEVICE)
    seen = []

    def step(x):
        y = conv(x)
        seen.append(y.is_contiguous(memory_format=torch.channels_last))
        return y

    compiled = torch.compile(step, backend="neuron")
    assert compiled(x).stride() == conv(x).stride()
    assert seen == [True]
