"""Kinds of faults that operator conformance runs have found, one test per kind."""

import pytest
import torch
import torch.nn.functional as F
import torch_neuronx
from conftest import DEVICE, assert_same, both

aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("pad", [(2, 1), (0, 3, 1, 0), (-1, 2), (-1, -1, 2, 2)])
def test_padded_reads_start_before_their_buffer(dtype, pad):
    device, host = both((torch.randn(4, 5) * 3).to(dtype))
    assert_same(F.pad(device, pad, value=1), F.pad(host, pad, value=1))


def test_gradients_of_slices_are_padded():
    x = torch.randn(5, 7)
    device, host = x.to(DEVICE).requires_grad_(), x.clone().requires_grad_()
    for t in (device, host):
        (t[1:4, ::2].sum() + t.select(1, 2).mul(2).sum()).backward()
    assert_same(device.grad, host.grad)


@pytest.mark.parametrize("start,end,steps", [(-3, 1.5, 3), (0.5, 4.9, 7), (2, -2.7, 50), (5, 5, 1)])
def test_ranges_of_integers_run_between_integers(start, end, steps):
    for make in (torch.linspace, torch.logspace):
        expected = make(start, min(end, 4.3), steps, dtype=torch.int64)
        assert_same(make(start, min(end, 4.3), steps, dtype=torch.int64, device=DEVICE), expected)


def test_strided_copies_read_the_storage():
    base = torch.arange(18)
    host = base.as_strided((3, 3), (6, 2), 1)
    device = base.to(DEVICE).as_strided((3, 3), (6, 2), 1)
    assert_same(
        torch.as_strided_copy(device, (2, 2), (1, 2), 0),
        torch.as_strided_copy(host, (2, 2), (1, 2), 0),
    )
    source = torch.full((2, 2), -1)
    assert_same(
        torch.as_strided_scatter(device, source.to(DEVICE), (2, 2), (1, 2), 1),
        torch.as_strided_scatter(host, source, (2, 2), (1, 2), 1),
    )


NO_META = {
    "geqrf": lambda d: aten.geqrf(torch.linspace(-1, 2, 15).reshape(5, 3).to(d)),
    "histogram": lambda d: aten.histogram.bin_ct(torch.linspace(-1, 2, 50).to(d), 10),
    "histogram_edges": lambda d: aten.histogram.bins_tensor(
        torch.linspace(-1, 2, 50).to(d), torch.linspace(-1, 1, 5).to(d)
    ),
    "fake_quantize": lambda d: aten.fake_quantize_per_tensor_affine_cachemask(
        torch.linspace(-2, 2, 9).to(d), 0.1, 0, -10, 10
    ),
    "logcumsumexp": lambda d: aten.logcumsumexp(torch.linspace(-1, 2, 12).reshape(3, 4).to(d), 1),
    "multi_margin_backward": lambda d: aten.multi_margin_loss_backward(
        torch.ones((), device=d),
        torch.linspace(-1, 2, 12).reshape(3, 4).to(d),
        torch.tensor([0, 3, 1], device=d),
        1,
        1,
        None,
        1,
    ),
    "dirichlet_grad": lambda d: aten._dirichlet_grad(
        torch.full((2, 3), 0.4, device=d),
        torch.full((2, 3), 1.5, device=d),
        torch.full((2, 3), 4.5, device=d),
    ),
    "batch_norm": lambda d: aten._batch_norm_with_update(
        torch.linspace(-1, 2, 24).reshape(2, 3, 4).to(d),
        *[torch.ones(3, device=d) for _ in range(4)],
        0.1,
        1e-5,
    ),
}


@pytest.mark.parametrize("name", NO_META)
def test_ops_without_a_meta_kernel_run_on_the_device(name):
    expected = NO_META[name]("cpu")
    torch_neuronx.clear_op_tracking()
    assert_same(NO_META[name](DEVICE), expected)
    assert not torch_neuronx.get_fallback_ops()


@pytest.mark.parametrize("cell", ["gru_cell", "lstm_cell"])
def test_recurrent_cells_and_their_gradients(cell):
    gates = 3 if cell == "gru_cell" else 4
    numbers = [
        torch.randn(*size)
        for size in [(2, 4), (2, 5), (gates * 5, 4), (gates * 5, 5), (gates * 5,), (gates * 5,)]
    ]
    results = []
    for device in (DEVICE, "cpu"):
        x, h, *rest = [t.detach().to(device).requires_grad_() for t in numbers]
        out = getattr(torch, cell)(x, h if cell == "gru_cell" else (h, h), *rest)
        out = out if cell == "gru_cell" else out[0] + out[1]
        out.square().sum().backward()
        results.append([out.detach(), *[t.grad for t in (x, h, *rest)]])
    assert_same(results[0], results[1], rtol=1e-4, atol=1e-5)


REFUSED = {
    "bucketize": (lambda t: torch.bucketize(t, t), "boundaries tensor must be 1 dimension"),
    "kthvalue": (
        lambda t: torch.kthvalue(
            t[0], 2, out=(t[0], torch.empty((), dtype=torch.long, device=t.device))
        ),
        "unsupported operation",
    ),
    "logcumsumexp": (lambda t: torch.logcumsumexp(t, 3), "Dimension out of range"),
    "roll": (lambda t: torch.roll(t, 0, 2), "out of range"),
    "masked_fill": (lambda t: t.masked_fill(t > 0, 1j), "without overflow"),
    "masked_scatter": (
        lambda t: t.masked_scatter(t.to(torch.uint8), t),
        "only supports boolean masks",
    ),
    "masked_select": (
        lambda t: torch.masked_select(t[0], t[0] > 0, out=t[0]),
        "unsupported operation",
    ),
    "gelu": (lambda t: F.gelu(t, approximate="asdf"), "approximate argument must be either"),
    "huber_loss": (lambda t: F.huber_loss(t, t, delta=-1.0), "non-positive values for delta"),
    "take": (
        lambda t: torch.take(t, torch.zeros(3, 3, dtype=torch.long, device=t.device), out=t),
        "unsupported operation",
    ),
    "multinomial": (lambda t: torch.multinomial(t.abs(), 0), "cannot sample n_sample <= 0 samples"),
    "conv_padding": (
        lambda t: F.conv2d(t[None, None], t[None, None], padding=-1),
        "negative padding is not supported",
    ),
    "conv_channels": (
        lambda t: F.conv1d(t[None], t[None][:, :2]),
        r"Given groups=1, weight of size \[1, 2, 3\], expected input\[1, 3, 3\] to have 2 channels",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_arguments_are_refused_in_the_words_of_the_cpu(name):
    call, words = REFUSED[name]
    for device in ("cpu", DEVICE):
        with pytest.raises((RuntimeError, IndexError), match=words):
            call(torch.linspace(-1, 1, 9).reshape(3, 3).to(device))


def test_pairs_of_halves_are_stored_and_moved():
    host = torch.complex(torch.randn(3, 4), torch.randn(3, 4)).to(torch.complex32)
    device = host.to(DEVICE)
    assert torch.equal(torch.view_as_real(device.cpu()), torch.view_as_real(host))
    assert torch.equal(
        torch.view_as_real(device.t().contiguous().cpu()), torch.view_as_real(host.t())
    )
    assert_same(device.to(torch.complex64), host.to(torch.complex64))
    wide = torch.empty(3, 8, dtype=torch.complex32, device=DEVICE)[:, ::2]
    wide.copy_(host)
    assert torch.equal(torch.view_as_real(wide.cpu()), torch.view_as_real(host))


def test_an_index_out_of_range_raises_at_the_call_where_the_caller_runs_the_work():
    if not torch_neuronx._C._is_inline():
        pytest.skip("another thread runs the work: the next synchronization raises")
    x, index = torch.zeros(3, 5, device=DEVICE), torch.tensor([[34, 0], [1, 2]], device=DEVICE)
    with pytest.raises(IndexError, match="index 34 is out of range"):
        torch.scatter_add(x, 0, index, torch.ones(2, 5, device=DEVICE))
    assert_same(x + 1, torch.ones(3, 5))  # The stream goes on.


OVERLAPPING = {
    "fill": lambda t, d: t.fill_(2),
    "zero": lambda t, d: t.zero_(),
    "masked_fill": lambda t, d: t.masked_fill_(torch.eye(4, 3, device=d).bool(), 9),
    "index_fill": lambda t, d: t.index_fill_(1, torch.tensor([0, 2], device=d), 5),
    "index_fill_expanded": lambda t, d: t.index_fill_(0, torch.tensor([1], device=d), 5),
}


@pytest.mark.parametrize("name", OVERLAPPING)
def test_one_value_may_be_written_through_an_expanded_view(name):
    host = torch.arange(3.0).view(1, 3)
    device = host.to(DEVICE)
    OVERLAPPING[name](host.expand(4, 3), "cpu")
    OVERLAPPING[name](device.expand(4, 3), DEVICE)
    assert_same(device, host)


REFUSED_OVERLAPS = {
    "add": lambda p, d: p.view(1, -1).expand(2, -1).add_(1),
    "cumsum": lambda p, d: p.view(1, -1).expand(2, -1).cumsum_(0),
    "where": lambda p, d: torch.where(p[1:] > 2, p[1:], p[:-1], out=p[1:]),
    "logical_not": lambda p, d: torch.logical_not(p[:-1], out=p[1:]),
    "copy": lambda p, d: p[1:].copy_(p[:-1]),
    "index_put": lambda p, d: p[1:3].index_put_((torch.tensor([0, 1], device=d),), p[0:2]),
    "copy_to_empty": lambda p, d: p[:0].view(3, 0).copy_(p[:4]),
    "index_fill_empty": lambda p, d: p[:0].index_fill_(0, torch.tensor([0], device=d), 1),
    "index_select_empty": lambda p, d: p[:0].index_select(0, torch.tensor([0], device=d)),
    "relu_of_bool": lambda p, d: torch.relu(p > 1),
    "var_of_integers": lambda p, d: p.long().var(),
    "negative_number_into_bytes": lambda p, d: p.byte().fill_(-1.25),
}


@pytest.mark.parametrize("name", REFUSED_OVERLAPS)
def test_what_the_cpu_refuses_is_refused(name):
    for device in ("cpu", DEVICE):
        with pytest.raises((RuntimeError, IndexError)):
            REFUSED_OVERLAPS[name](torch.arange(12.0, device=device), device)


ON_THE_DEVICE = {
    "mvlgamma": lambda t: torch.mvlgamma(t.abs() + 3, 3, out=torch.empty_like(t)),
    "hash_tensor": lambda t: torch.hash_tensor(t, dim=1),
    "unique_dim": lambda t: torch.unique(t.round(), dim=0, return_inverse=True, return_counts=True),
    "unique_dim_1": lambda t: torch.unique(t.round(), dim=1, return_inverse=True),
    "unique_consecutive_dim": lambda t: torch.unique_consecutive(
        t.round(), return_inverse=True, return_counts=True, dim=0
    ),
    "embedding_renorm": lambda t: F.embedding(
        torch.tensor([[1, 2], [1, 5]], device=t.device), t, max_norm=0.5, norm_type=1.5
    ),
    "histogramdd": lambda t: torch.histogramdd(t[:, :2], [3, 4]),
    "histogramdd_edges": lambda t: torch.histogramdd(
        t[:, :2], [torch.linspace(-1, 1, 4, device=t.device)] * 2
    ),
    "zero_tensor": lambda t: torch._efficientzerotensor((2, 3), device=t.device) + 1,
    "wide_norm": lambda t: torch.linalg.vector_norm(torch.complex(t, t), 1, dtype=torch.complex128),
}


@pytest.mark.parametrize("name", ON_THE_DEVICE)
def test_rare_operators_run_on_the_device(name):
    host = torch.randint(0, 2, (40, 3)).float() + 0.1 * torch.randn(40, 3)
    device = host.to(DEVICE)
    expected = ON_THE_DEVICE[name](host)
    torch_neuronx.reset_op_stats()
    assert_same(ON_THE_DEVICE[name](device), expected)
    assert not torch_neuronx.get_fallback_ops()
    if name == "embedding_renorm":
        assert_same(device, host)


def test_resampled_bytes_join_neighbours_beyond_the_border_before_rounding():
    host = torch.tensor([[2, 8, 9, 4], [3, 9, 3, 6], [1, 1, 4, 6], [7, 7, 3, 1]]).byte()
    for size in ((3, 3), (5, 6), (2, 7)):
        image = host.expand(1, 3, 4, 4).contiguous()
        assert_same(
            F.interpolate(image.to(DEVICE), size, mode="bicubic"),
            F.interpolate(image, size, mode="bicubic"),
        )


def test_small_products_are_rounded_once():
    a, b = torch.randn(3, 5, 20), torch.randn(3, 20, 3)
    exact = (a.double() @ b.double()).float()
    assert torch.equal((a.to(DEVICE) @ b.to(DEVICE)).cpu(), exact)


@pytest.mark.parametrize("function", ["abs", "sgn"])
def test_derivatives_that_vanish_have_no_memory(function):
    zeros = torch._efficientzerotensor((3,), device=DEVICE)
    assert_same(zeros.clone(), torch.zeros(3))
    assert_same(torch.dot(zeros, torch.ones(3, device=DEVICE)), torch.zeros(()))
    x = torch.randn(2, 3, dtype=torch.float64, device=DEVICE, requires_grad=True)
    assert torch.autograd.gradcheck(getattr(torch, function), x, check_forward_ad=True)
