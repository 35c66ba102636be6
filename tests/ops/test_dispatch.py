"""The dispatcher: variants derived from schemas, keys, fallback, mixed devices, foreach lists."""

import warnings

import pytest
import torch
import torch_neuronx
from conftest import assert_same, both

C = torch_neuronx._C
DEVICE = "neuron"


def schema(name: str) -> str:
    packet, _, overload = name.partition(".")
    return str(getattr(getattr(torch.ops.aten, packet), overload or "default")._schema)


@pytest.mark.parametrize(
    ("functional", "candidate", "expected"),
    [
        ("add.Tensor", "add_.Tensor", "in-place; arguments 0 1 2; values -> 0"),
        ("add.Tensor", "add.out", "out; arguments 0 1 2; values -> 3"),
        ("max.dim", "max.dim_max", "out; arguments 0 1 2; values -> 3 -> 4"),
        ("normal_functional", "normal_", "in-place; arguments 0 1 2 3; values -> 0"),
        ("_foreach_add.List", "_foreach_add_.List", "in-place; arguments 0 1 2; values -> 0[]"),
        ("arange.start_step", "arange.start_out", "out; arguments 0 1 2 -1 -1 -1 -1; values -> 3"),
        ("add.Tensor", "sub.out", ""),
        ("add.Tensor", "add_.Scalar", ""),
    ],
)
def test_variants_are_derived_from_signatures(functional, candidate, expected):
    found = C._explain_variant(schema(functional), schema(candidate))
    if candidate == "sub.out":  # the same signature; only the name tells them apart
        assert found.startswith("out")
    else:
        assert found == expected


def test_every_installed_overload_names_its_lowering():
    installed = C._installed_variants()
    assert installed["aten::add_.Tensor"] == "aten::add.Tensor"
    assert installed["aten::normal_"] == "aten::normal_functional"
    assert "aten::transpose_" not in installed, "the in-place form of a view is no write"
    assert "aten::copy_" not in installed


def test_no_lowering_differs_from_torchs_schema():
    drifted = {k: v for k, v in C._refused_lowerings().items() if "differs" in v or "no such" in v}
    assert not drifted


def test_fallback_counts_warns_once_and_can_be_refused():
    x = torch.tensor([[3.0, 1.0], [1.0, 3.0]], device=DEVICE)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        torch.linalg.lstsq(x, x)
        torch.linalg.lstsq(x, x)
    assert torch_neuronx.get_op_counts()["fallback"]["aten::linalg_lstsq"] == 2
    torch_neuronx.set_fallback_allowed(False)
    try:
        with pytest.raises(NotImplementedError, match=r"aten::linalg_lstsq.*CPU fallback is off"):
            torch.linalg.lstsq(x, x)
    finally:
        torch_neuronx.set_fallback_allowed(True)


def test_a_large_cpu_tensor_is_refused_and_named():
    x = torch.ones(3, 3, device=DEVICE)
    with pytest.raises(RuntimeError, match="mat2 is on cpu"):
        torch.mm(x, torch.ones(3, 3))
    with pytest.raises(RuntimeError, match="same device"):
        x + torch.ones(3)


def test_zero_dim_cpu_tensors_are_run_time_numbers():
    x = torch.arange(4.0, device=DEVICE)
    number = torch.tensor(2.0)
    (x * number).cpu()
    before = torch_neuronx.get_runtime_stats()["programs_built"]
    for value in (3.0, -1.5, 7.0):
        number.fill_(value)
        assert_same(x * number, torch.arange(4.0) * value)
    assert torch_neuronx.get_runtime_stats()["programs_built"] == before


def test_out_is_resized_with_torchs_warning():
    x = torch.arange(6.0, device=DEVICE)
    out = torch.empty(2, device=DEVICE)
    with pytest.warns(UserWarning, match="resized"):
        torch.add(x, x, out=out)
    assert_same(out, torch.arange(6.0) * 2)
    wide = torch.empty(6, dtype=torch.float64, device=DEVICE)
    torch.add(x, 1, out=wide)
    assert_same(wide, torch.arange(6.0, dtype=torch.float64) + 1)
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.add(x, 1, out=torch.empty(6, dtype=torch.int64, device=DEVICE))


def test_tensor_twice_in_a_foreach_list_is_written_twice():
    x, reference = both(torch.ones(3))
    torch._foreach_add_([x, x], [1.0, 2.0])
    torch._foreach_add_([reference, reference], [1.0, 2.0])
    assert_same(x, reference)


def test_input_that_is_the_destination_is_read_first():
    x, reference = both(torch.arange(9.0).view(3, 3))
    x = x.t().clone()
    x.mul_(x)
    torch.mm(x, x, out=x)
    squares = reference.t().clone().square_()
    assert_same(x, squares @ squares)


def test_masks_and_cpu_indices():
    x, reference = both(torch.arange(12.0).view(3, 4))
    mask = reference > 5
    assert_same(x[mask.to(DEVICE)], reference[mask])
    assert_same(x[torch.tensor([0, 2])], reference[torch.tensor([0, 2])])
    for t in (x, reference):
        t[t > 8] = 0.0
        t[t == 0] = torch.full((int((t == 0).sum()),), -1.0, device=t.device)
    assert_same(x, reference)


def test_results_whose_size_depends_on_values():
    x, reference = both(torch.tensor([3, 1, 3, 3, 0, 1]))
    for options in ({}, {"return_inverse": True, "return_counts": True}):
        assert_same(torch.unique(x, **options), torch.unique(reference, **options))
        assert_same(
            torch.unique_consecutive(x, **options), torch.unique_consecutive(reference, **options)
        )
    assert_same(torch.bincount(x, minlength=7), torch.bincount(reference, minlength=7))
    assert_same(x.nonzero(), reference.nonzero())
    assert_same(x.masked_select(x > 1), reference.masked_select(reference > 1))
    assert_same(torch.repeat_interleave(x, x), torch.repeat_interleave(reference, reference))
    assert not torch_neuronx.get_fallback_ops()


@pytest.mark.parametrize("length", [0, 1, 5, 0, 3])
def test_length_of_a_range_belongs_to_the_key(length):
    assert_same(torch.arange(length, device=DEVICE), torch.arange(length))


def test_default_dtype_belongs_to_the_key():
    x = torch.tensor([1, 2], device=DEVICE)
    assert (x / 2).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert (x / 2).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert (x / 2).dtype == torch.float32


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.bernoulli_(1.5),
        lambda x: x.normal_(0, -1),
        lambda x: x.uniform_(2, 1),
        lambda x: x.exponential_(-1),
        lambda x: x.to(torch.int64).pow(-1),
        lambda x: torch.add(x > 0, x > 0, alpha=True).add_(1, alpha=True),
        lambda x: x.to(torch.uint8).fill_(300),
        lambda x: x.softmax(7),
        lambda x: x.expand(2, 3).add_(1),
        lambda x: x[:2].add_(torch.ones(3, device=x.device)),
    ],
)
def test_errors_have_the_cpus_class_and_text(call):
    with pytest.raises(Exception) as expected:
        call(torch.ones(3))
    for _ in range(2):  # a hit as well as a miss
        with pytest.raises(type(expected.value)) as actual:
            call(torch.ones(3, device=DEVICE))
        assert str(actual.value).split("\n")[0] == str(expected.value).split("\n")[0]


def test_running_statistics_are_updated():
    layer, twin = torch.nn.BatchNorm1d(4).to(DEVICE), torch.nn.BatchNorm1d(4)
    x = torch.randn(8, 4)
    assert_same(layer(x.to(DEVICE)), twin(x))
    assert_same(layer.running_mean, twin.running_mean)
    assert_same(layer.running_var, twin.running_var)


def test_attention_is_kept_whole_and_has_gradients():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 5, 8, requires_grad=True) for _ in range(3))
    on_device = [t.detach().to(DEVICE).requires_grad_() for t in (q, k, v)]
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    torch_neuronx.clear_op_tracking()
    for options in ({}, {"is_causal": True}, {"attn_mask": mask}):
        expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)
        moved = {n: o.to(DEVICE) if isinstance(o, torch.Tensor) else o for n, o in options.items()}
        actual = torch.nn.functional.scaled_dot_product_attention(*on_device, **moved)
        assert_same(actual.detach(), expected.detach())
        cotangent = torch.randn_like(expected)
        wanted = torch.autograd.grad(expected, (q, k, v), cotangent)
        given = torch.autograd.grad(actual, on_device, cotangent.to(DEVICE))
        assert_same(list(given), list(wanted), rtol=1e-4, atol=1e-5)
    executed = torch_neuronx.get_op_counts()["executed"]
    assert executed["aten::_scaled_dot_product_fused_attention_overrideable"] == 3


def test_attention_under_function_transforms():
    q = torch.randn(3, 2, 4, 5, 8)

    def loss(t):
        out = torch.nn.functional.scaled_dot_product_attention(t, t, t, is_causal=True)
        return out.square().sum()

    batched = torch.vmap(torch.func.grad(loss))
    assert_same(batched(q.to(DEVICE)), batched(q), rtol=1e-4, atol=1e-4)
    moved = q[0].to(DEVICE)
    _, tangent = torch.func.jvp(loss, (moved,), (moved,))
    assert torch.isfinite(tangent).item()
