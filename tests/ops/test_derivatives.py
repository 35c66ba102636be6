"""Second derivatives, forward mode and vmap over torch's operator database, where the CPU passes.

A small choice of operators by default; NEURON_TEST_DERIVATIVES='linalg.*|nn.*' (a regular
expression over names) asks for others, '.*' for all.
"""

import os
import re
import warnings

import pytest
import torch
from conftest import DEVICE, assert_same
from torch.testing._internal.common_methods_invocations import op_db

CHOICE = (
    "add|mul|div|matmul|bmm|addmm|softmax|log_softmax|logsumexp|layer_norm|cumsum|cumprod|index_select"
    "|gather|scatter_add|masked_fill|where|cat|var|prod|sort|max.reduction.*|linalg.cholesky"
    "|linalg.inv|linalg.solve|linalg.svd|linalg.eigh|fft.fft|fft.irfft|nn.functional.conv2d|nn.functional.gelu"
    "|nn.functional.batch_norm|nn.functional.cross_entropy|nn.functional.scaled_dot_product_attention"
    "|nn.functional.embedding|nn.functional.interpolate.bilinear|nn.functional.max_pool2d|erf|lgamma"
    "|atan2|unfold|index_put|diagonal_scatter|polygamma|special.i1e"
)
WANTED = re.compile(os.environ.get("NEURON_TEST_DERIVATIVES", CHOICE))
SAMPLES = 2


def name_of(op) -> str:
    return op.name + ("." + op.variant_test_name if op.variant_test_name else "")


OPS = [op for op in op_db if WANTED.fullmatch(name_of(op)) or WANTED.fullmatch(op.name)]
DIFFERENTIABLE = [op for op in OPS if op.supports_autograd and torch.float64 in op.dtypes]


def moved(tree, device):
    def move(t):
        return t.detach().to(device).requires_grad_(t.requires_grad)

    return torch.utils._pytree.tree_map_only(torch.Tensor, move, tree)


def samples_of(op, device, **options):
    """The smallest samples: numeric derivatives take two calls per element."""
    torch.manual_seed(7)
    samples = list(op.sample_inputs("cpu", torch.float64, **options))

    def weight(sample):
        tensors = torch.utils._pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
        count = sum(t.numel() for t in tensors if isinstance(t, torch.Tensor))
        return count if count > 1 else 1000

    for sample in sorted(samples, key=weight)[:SAMPLES]:
        yield (
            moved(sample.input, device),
            moved(tuple(sample.args), device),
            moved(dict(sample.kwargs), device),
            sample.output_process_fn_grad,
        )


def function_of(op, arguments):
    """The op as a function of its differentiable tensors alone."""
    first, rest, options, finish = arguments
    leaves, spec = torch.utils._pytree.tree_flatten((first, rest, options))
    places = [
        i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]

    def call(*tensors):
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        a, b, c = torch.utils._pytree.tree_unflatten(filled, spec)
        torch.manual_seed(3)
        out = op.gradcheck_wrapper(op.get_op(), a, *b, **c)
        out = finish(out) if finish is not None else out
        kept = [
            t
            for t in torch.utils._pytree.tree_leaves(out)
            if isinstance(t, torch.Tensor) and (t.is_floating_point() or t.is_complex())
        ]
        return tuple(kept) if len(kept) != 1 else kept[0]

    return call, tuple(leaves[place] for place in places)


def first_error(check, op, device):
    """None if all samples pass, else the first exception."""
    try:
        for arguments in samples_of(op, device, requires_grad=True):
            call, tensors = function_of(op, arguments)
            if tensors:
                check(call, tensors)
    except Exception as error:
        return error
    return None


def compare_with_cpu(check, op) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if first_error(check, op, "cpu") is not None:
            pytest.skip("the CPU does not pass")
        error = first_error(check, op, DEVICE)
    if error is not None:
        raise error


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=name_of)
def test_first_derivatives_and_forward_mode(op):
    def check(call, tensors):
        torch.autograd.gradcheck(
            call,
            tensors,
            fast_mode=True,
            check_forward_ad=op.supports_forward_ad,
            check_undefined_grad=False,
            check_batched_grad=False,
            nondet_tol=op.gradcheck_nondet_tol,
        )

    compare_with_cpu(check, op)


@pytest.mark.parametrize("op", [op for op in DIFFERENTIABLE if op.supports_gradgrad], ids=name_of)
def test_second_derivatives(op):
    def check(call, tensors):
        torch.autograd.gradgradcheck(
            call,
            tensors,
            fast_mode=True,
            check_undefined_grad=False,
            check_batched_grad=False,
            nondet_tol=op.gradcheck_nondet_tol,
        )

    compare_with_cpu(check, op)


@pytest.mark.parametrize("op", [op for op in OPS if torch.float64 in op.dtypes], ids=name_of)
def test_vmap(op):
    def batched(device):
        results = []
        for first, rest, options, _ in samples_of(op, device):
            if not isinstance(first, torch.Tensor):
                continue
            stacked = torch.stack([first, first * 0.5])
            torch.manual_seed(3)
            results.append(
                torch.vmap(lambda x, r=rest, o=options: op.get_op()(x, *r, **o), randomness="same")(
                    stacked
                )
            )
        return results

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = batched("cpu")
        except Exception:
            pytest.skip("the CPU does not pass")
        actual = batched(DEVICE)
    if op.name in ("nn.functional.dropout", "bernoulli", "normal", "rand_like", "randn_like"):
        return
    assert_same(actual, expected, rtol=1e-7, atol=1e-7)
