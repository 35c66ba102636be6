"""Complex numbers: parts, conjugation, functions, products, transforms, special values."""

import cmath

import pytest
import torch
import torch_neuronx
from conftest import DEVICE, assert_same, both

DTYPES = [torch.complex64, torch.complex128]
FUNCTIONS = [
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "rsqrt",
    "sigmoid",
    "tanh",
    "tan",
    "sin",
    "cos",
    "sinh",
    "cosh",
    "asin",
    "acos",
    "atan",
    "asinh",
    "acosh",
    "atanh",
    "abs",
    "angle",
    "sgn",
    "reciprocal",
    "square",
    "neg",
    "conj_physical",
    "isnan",
    "isinf",
    "isfinite",
    "nan_to_num",
]
INF, NAN = float("inf"), float("nan")


def numbers(dtype, *size):
    return torch.randn(*size, dtype=torch.complex128).to(dtype) * 2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_travel_and_show_their_parts(dtype):
    host = numbers(dtype, 4, 6)
    moved = host.to(DEVICE)
    assert_same(moved, host)
    assert_same(moved.t(), host.t())
    assert_same(moved[:, ::2].clone(), host[:, ::2])
    assert_same((moved.real, moved.imag), (host.real, host.imag))
    assert_same(torch.view_as_real(moved), torch.view_as_real(host))
    assert_same(torch.view_as_complex(torch.view_as_real(moved) * 2), host * 2)
    assert_same(torch.complex(moved.real, moved.imag), host)
    assert_same(moved.to(torch.complex64), host.to(torch.complex64))
    assert_same(torch.conj_physical(moved.clone(), out=moved.clone()), host.conj_physical())
    assert_same(moved.clone().conj_physical_(), host.conj_physical())
    moved.imag.zero_()
    moved.real[0] = 5
    host.imag.zero_()
    host.real[0] = 5
    assert_same(moved, host)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_lazy_conjugation_is_resolved(dtype):
    host = numbers(dtype, 5, 5)
    moved = host.to(DEVICE)
    assert moved.conj().is_conj()
    for function in (
        lambda t: t.conj() + 1,
        lambda t: t.mH @ t,
        lambda t: t.conj().imag * 2,
        lambda t: t.conj().resolve_conj(),
        lambda t: t.clone().copy_(t.conj()),
        lambda t: torch.vdot(t[0], t[1]),
        lambda t: t.conj().sum(0),
    ):
        assert_same(function(moved), function(host))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name, dtype):
    host = numbers(dtype, 3, 50)
    function = getattr(torch, name)
    assert_same(function(both(host)[0]), function(host))
    assert not torch_neuronx.get_fallback_ops()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "name", ["exp", "log", "sqrt", "rsqrt", "tanh", "sin", "cosh", "abs", "angle"]
)
def test_special_values_follow_the_library(name, dtype):
    values = [
        complex(a, b)
        for a in (0.0, -0.0, 1, -1, 1000, -1000, INF, -INF)
        for b in (0.0, -0.0, 1, -2)
    ]
    host = torch.tensor(values, dtype=dtype)
    function = getattr(torch, name)
    assert_same(function(both(host)[0]), function(host))


def test_branch_cuts_follow_the_sign_of_zero():
    host = torch.tensor([complex(-2, 0.0), complex(-2, -0.0)])
    assert_same(
        torch.log(host.to(DEVICE)),
        torch.tensor([cmath.log(complex(-2, 0.0)), cmath.log(complex(-2, -0.0))]),
    )
    assert_same(torch.sqrt(host.to(DEVICE)), torch.tensor([2**0.5 * 1j, -(2**0.5) * 1j]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_near_the_ends_of_the_range(dtype):
    top = torch.finfo(dtype).max
    host = torch.tensor(
        [complex(top, top), complex(top, 1), complex(top / 3, -top / 2)], dtype=dtype
    )
    moved = host.to(DEVICE)
    assert_same(
        (moved.sqrt(), moved.log(), moved / moved[1], (moved / 4).abs()),
        (host.sqrt(), host.log(), host / host[1], (host / 4).abs()),
    )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arithmetic_with_tensors_and_numbers(dtype):
    left, right = numbers(dtype, 4, 1), numbers(dtype, 1, 7)
    real = torch.randn(7, dtype=torch.float64).to(right.real.dtype)
    on = [t.to(DEVICE) for t in (left, right, real)]
    for function in (
        torch.add,
        torch.sub,
        torch.mul,
        torch.div,
        torch.pow,
        torch.eq,
        torch.ne,
        torch.logaddexp,
    ):
        assert_same(function(on[0], on[1]), function(left, right))
    for function in (
        lambda a, b, c: a * c + 1j,
        lambda a, b, c: (2 + 1j) * a - c,
        lambda a, b, c: a**2 + b**-1,
        lambda a, b, c: a ** (0.5 - 1j),
        lambda a, b, c: 2**b,
        lambda a, b, c: a**0,
        lambda a, b, c: torch.where(c > 0, a, b),
        lambda a, b, c: torch.polar(c.abs(), c),
        lambda a, b, c: torch.addcmul(a, b, a, value=1j),
        lambda a, b, c: a.lerp(b, 0.25),
        lambda a, b, c: a.expand(4, 7).clone().fill_(3 - 2j),
        lambda a, b, c: c + 1j,
    ):
        assert_same(function(*on), function(left, right, real))
    assert not torch_neuronx.get_fallback_ops()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reductions_and_scans(dtype):
    host = numbers(dtype, 6, 40) / 3
    moved = host.to(DEVICE)
    for function in (
        torch.sum,
        lambda t: t.sum(0),
        lambda t: t.mean(1),
        lambda t: t[:, :5].prod(1),
        torch.var,
        lambda t: torch.linalg.vector_norm(t, dim=1),
        lambda t: t.cumsum(1),
        lambda t: t.cumprod(0),
        lambda t: t.logsumexp(1),
        lambda t: torch.sum(t.expand(5000, 6, 40), 0),
        torch.trace,
        lambda t: t[:0].sum(),
        lambda t: t[:0].prod(0),
        torch.any,
        torch.all,
    ):
        assert_same(function(moved), function(host), rtol=1e-5, atol=1e-5)
    assert not torch_neuronx.get_fallback_ops()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products(dtype):
    a, b = numbers(dtype, 3, 20, 30), numbers(dtype, 3, 30, 10)
    left, right = a.to(DEVICE), b.to(DEVICE)
    assert_same(left @ right, a @ b)
    assert_same(left[0] @ right[0], a[0] @ b[0])
    assert_same(left[0].mH @ left[0], a[0].mH @ a[0])
    assert_same(left[0] @ right[0, :, 0], a[0] @ b[0, :, 0])
    assert_same(torch.einsum("bij,bjk->ik", left, right), torch.einsum("bij,bjk->ik", a, b))
    assert_same(torch.kron(left[0], right[0]), torch.kron(a[0], b[0]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_views_and_indices(dtype):
    host = numbers(dtype, 5, 6)
    index = torch.tensor([3, 0, 3])

    def assigned(t, i):
        t = t.clone()
        t[i, 1] = 2j
        t[:, 2:4] += t[:, :2]
        return t

    for function in (
        lambda t, i: t[i],
        lambda t, i: t.flip(0).roll(1, 1),
        lambda t, i: torch.cat([t, t.conj()], 1),
        lambda t, i: torch.nn.functional.pad(t, (1, 2), value=3),
        lambda t, i: t.index_add(0, i, t[i]),
        lambda t, i: t.repeat(2, 1),
        lambda t, i: t.tril(),
        assigned,
        lambda t, i: t.diagonal() * 1j,
        lambda t, i: torch.stack([t, t]).permute(2, 0, 1).contiguous(),
    ):
        assert_same(function(host.to(DEVICE), index.to(DEVICE)), function(host, index))


@pytest.mark.parametrize(
    "name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft", "fft2", "rfftn", "irfft2"]
)
def test_transforms(name):
    complex_input = name in ("fft", "ifft", "irfft", "hfft", "fft2", "irfft2")
    host = torch.randn(4, 12, dtype=torch.complex64 if complex_input else torch.float32)
    function = getattr(torch.fft, name)
    assert_same(function(host.to(DEVICE)), function(host))


def test_gradients():
    host = numbers(torch.complex128, 4, 4).requires_grad_()
    moved = host.detach().to(DEVICE).requires_grad_()
    for x in (host, moved):
        y = (x.exp().log() * x.conj() + x @ x).abs().sum() + x.tanh().real.sum() + x.angle().sum()
        y = y + x.sigmoid().imag.sum()
        y.backward()
    assert_same(moved.grad, host.grad)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_random_parts_have_their_distributions(dtype):
    uniform = torch.empty(20000, dtype=dtype, device=DEVICE).uniform_(1, 3).cpu()
    for part in (uniform.real, uniform.imag):
        assert part.min() >= 1 and part.max() < 3 and abs(part.mean() - 2) < 0.05
    normal = torch.randn(20000, dtype=dtype, device=DEVICE).cpu()
    assert (
        abs(normal.var() - 1) < 0.05
        and abs(torch.corrcoef(torch.view_as_real(normal).T)[0, 1]) < 0.05
    )
    moved = torch.empty(20000, dtype=dtype, device=DEVICE).normal_(2, 3).cpu()
    assert abs(moved.real.mean() - 2) < 0.1 and abs(moved.imag.std() - 3 / 2**0.5) < 0.1


def test_sequences():
    assert_same(torch.linspace(1j, 4 + 2j, 7, device=DEVICE), torch.linspace(1j, 4 + 2j, 7))
    assert_same(torch.logspace(1j, 1 + 2j, 5, device=DEVICE), torch.logspace(1j, 1 + 2j, 5))
    assert_same(torch.full((3,), 1 - 2j, device=DEVICE), torch.full((3,), 1 - 2j))


def test_rotary_embedding_in_one_program():
    x = torch.randn(2, 8, 4, 16)
    angles = torch.outer(torch.arange(8.0), 1 / 10000 ** (torch.arange(0, 16, 2) / 16))

    def rotate(x, angles):
        turn = torch.polar(torch.ones_like(angles), angles)[:, None, :]
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turn).flatten(3)

    assert_same(rotate(x.to(DEVICE), angles.to(DEVICE)), rotate(x, angles))
