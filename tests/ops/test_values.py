"""Where a wrong number would hide: NaN, signed zeros, empties, integers, accumulation, scalars."""

import pytest
import torch
from conftest import assert_same, both

SPECIAL = torch.tensor(
    [
        float("nan"),
        float("inf"),
        -float("inf"),
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        88.8,
        -104.0,
        1e-40,
        3e38,
        -3e38,
        2.0,
    ]
)
UNARY = [
    "abs",
    "neg",
    "sign",
    "exp",
    "expm1",
    "log",
    "log1p",
    "log2",
    "log10",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "floor",
    "ceil",
    "trunc",
    "round",
    "sin",
    "cos",
    "tanh",
    "sigmoid",
    "erf",
    "relu",
    "isnan",
    "isinf",
    "isfinite",
    "atan",
    "asinh",
    "square",
    "nan_to_num",
    "signbit",
]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str
)
@pytest.mark.parametrize("name", UNARY)
def test_special_values_of_unary_functions(name, dtype):
    moved, host = both(SPECIAL.to(dtype))
    assert_same(getattr(torch, name)(moved), getattr(torch, name)(host))


@pytest.mark.parametrize(
    "name",
    [
        "add",
        "sub",
        "mul",
        "div",
        "maximum",
        "minimum",
        "fmax",
        "fmin",
        "pow",
        "fmod",
        "remainder",
        "atan2",
        "eq",
        "lt",
        "ge",
        "copysign",
    ],
)
def test_special_values_of_binary_functions(name):
    left, right = torch.meshgrid(SPECIAL, SPECIAL, indexing="ij")
    function = getattr(torch, name)
    assert_same(function(both(left)[0], both(right)[0]), function(left, right))


def test_reductions_propagate_nan_and_count_empties():
    x = torch.tensor([[1.0, float("nan"), 3.0], [2.0, 5.0, 4.0]])
    moved, host = both(x)
    for function in (
        lambda t: t.max(1),
        lambda t: t.argmin(1),
        lambda t: t.amin(0),
        torch.sum,
        lambda t: t.softmax(1),
        lambda t: t.max(),
    ):
        assert_same(function(moved), function(host))
    empty = torch.empty(0, 3)
    for function in (
        torch.sum,
        torch.prod,
        torch.mean,
        lambda t: t.sum(0),
        lambda t: t.all(),
        lambda t: t.any(1),
    ):
        assert_same(function(both(empty)[0]), function(empty))


def test_bf16_rows_are_summed_in_f32():
    x = torch.ones(4096, dtype=torch.bfloat16)
    assert both(x)[0].sum().item() == 4096
    assert both(x)[0].cumsum(0)[-1].item() == x.cumsum(0)[-1].item()


def test_integers_are_exact_and_wrap():
    x = torch.tensor([2**53 + 1, -(2**62), 7, -7])
    y = torch.tensor([3, 5, -2, 2])
    for function in (
        torch.add,
        torch.mul,
        torch.sub,
        lambda a, b: torch.div(a, b, rounding_mode="floor"),
        lambda a, b: torch.div(a, b, rounding_mode="trunc"),
        torch.remainder,
        torch.fmod,
    ):
        assert_same(function(both(x)[0], both(y)[0]), function(x, y))
    assert (both(x)[0] + 2**53 + 1).tolist() == (x + 2**53 + 1).tolist()
    small = torch.tensor([250, 3], dtype=torch.uint8)
    assert_same(both(small)[0] + 10, small + 10)


def test_scalars_are_run_time_inputs():
    import torch_neuronx

    x = torch.ones(100, device="neuron")
    x * 1.5 + 2.5
    torch.addcmul(x, x, x, value=0.1)
    before = torch_neuronx.get_runtime_stats()["programs_built"]
    for k in range(20):
        x * (0.1 * k) + k * 0.3
        torch.addcmul(x, x, x, value=0.1 * k)
    assert torch_neuronx.get_runtime_stats()["programs_built"] == before


def test_beta_zero_hides_nan():
    bad = torch.full((2, 2), float("nan"))
    a = torch.randn(2, 3)
    assert_same(
        torch.addmm(both(bad)[0], both(a)[0], both(a)[0].t(), beta=0),
        torch.addmm(bad, a, a.t(), beta=0),
    )


def test_host_scalar_tensors_are_read_when_called():
    x = torch.ones(3, device="neuron")
    factor = torch.tensor(2.0)
    y = x * factor
    factor.fill_(100)
    assert y.tolist() == [2, 2, 2]


@pytest.mark.parametrize("shape", [(5, 7), (1, 1), (3, 0), (64, 65), (2, 3, 33)])
def test_matrix_products_of_any_layout(shape):
    a = torch.randn(*shape)
    b = torch.randn(*shape[:-2], shape[-1], 9)
    (da, ha), (db, hb) = both(a), both(b)
    assert_same(da @ db, ha @ hb)
    assert_same(da.transpose(-1, -2) @ da, ha.transpose(-1, -2) @ ha)
    assert_same(da.bfloat16() @ db.bfloat16(), ha.bfloat16() @ hb.bfloat16())
    assert_same((da * 4).long() @ (db * 4).long(), (ha * 4).long() @ (hb * 4).long())


def test_indexing_family():
    x = torch.randn(6, 5, 4)
    i = torch.tensor([0, -1, 3, 3])
    j = torch.tensor([[1], [2]])
    (dx, hx), (di, hi), (dj, hj) = both(x), both(i), both(j)
    assert_same(dx[di], hx[hi])
    assert_same(dx[:, di], hx[:, hi])
    assert_same(dx[di, :, dj], hx[hi, :, hj])
    assert_same(dx[dx > 0], hx[hx > 0])
    assert_same(dx.index_select(1, di.clamp(min=0)), hx.index_select(1, hi.clamp(min=0)))
    for t, k in ((dx, di), (hx, hi)):
        t.index_put_((k,), torch.ones((), device=t.device), accumulate=True)
        t.index_add_(0, k.clamp(min=0), torch.ones(4, 5, 4, device=t.device))
    assert_same(dx, hx)


def test_index_out_of_range_is_an_error_and_the_device_goes_on():
    x = torch.zeros(4, device="neuron")
    with pytest.raises((IndexError, RuntimeError), match="index"):
        x[torch.tensor([9], device="neuron")]
        torch.neuron.synchronize()
    assert (x + 1).sum().item() == 4


@pytest.mark.parametrize(
    "call, kind",
    [
        (lambda d: torch.ones(2, 3, device=d) @ torch.ones(2, 3, device=d), RuntimeError),
        (lambda d: torch.ones(2, device=d).softmax(3), IndexError),
        (lambda d: torch.ones(2, device=d) & torch.ones(2, device=d), RuntimeError),
        (lambda d: torch.arange(3, device=d) ** -1, RuntimeError),
        (lambda d: torch.ones(2, 2, device=d) + torch.ones(3, device=d), RuntimeError),
        (
            lambda d: torch.cat([torch.ones(2, 2, device=d), torch.ones(3, 3, device=d)]),
            RuntimeError,
        ),
        (lambda d: torch.ones(2, device=d).add_(torch.ones(2, 2, device=d)), RuntimeError),
        (lambda d: torch.ones(3, dtype=torch.long, device=d).mean(), RuntimeError),
    ],
    ids=range(8),
)
def test_errors_are_the_cpus(call, kind):
    with pytest.raises(kind) as host:
        call("cpu")
    with pytest.raises(kind) as device:
        call("neuron")
    assert str(device.value).split("\n")[0] == str(host.value).split("\n")[0]
