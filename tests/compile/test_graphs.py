"""How graphs run: one program each, no copies of what is there, no code for new sizes."""

import pytest
import torch
import torch.nn.functional as F
import torch_neuronx
from conftest import assert_same, both
from torch import nn


def compiled(function, **options):
    return torch.compile(function, backend="neuron", **options)


def counted(function):
    """What ``function`` returns, and how much the counters of the runtime moved."""
    before = torch_neuronx.get_runtime_stats()
    result = function()
    torch.neuron.synchronize()
    after = torch_neuronx.get_runtime_stats()
    return result, {name: after[name] - before[name] for name in before}


class Layer(nn.Module):
    def __init__(self, width=16, heads=2):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).split(width, 2)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(x.shape))


def model_and_twin():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 16), Layer(), Layer(), nn.Linear(16, 11))
    twin = nn.Sequential(nn.Embedding(11, 16), Layer(), Layer(), nn.Linear(16, 11))
    twin.load_state_dict(model.state_dict())
    return model, twin.to("neuron")


def loss_of(model, ids):
    return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


def test_a_transformer_is_one_program_forward_and_one_backward():
    model, twin = model_and_twin()
    ids = torch.randint(11, (2, 5))
    moved = ids.to("neuron")
    step = compiled(twin)

    def loss():
        return loss_of(step, moved)

    # Calls outside the model (the loss) run eagerly: compile them as well.
    whole = compiled(loss_of)
    whole(twin, moved).backward()
    twin.zero_grad()
    value, forward = counted(lambda: whole(twin, moved))
    assert forward["launches"] == 1 and forward["programs_built"] == 0
    gradient = torch.ones_like(value)
    _, backward = counted(lambda: value.backward(gradient))
    assert backward["launches"] == 1 and backward["programs_built"] == 0
    expected = loss_of(model, ids)
    expected.backward()
    assert_same(value.detach(), expected.detach())
    for wanted, got in zip(model.parameters(), twin.parameters(), strict=True):
        assert_same(got.grad, wanted.grad, rtol=1e-4, atol=1e-5)


def test_inputs_and_views_of_them_are_returned_without_a_copy():
    x = torch.randn(4, 6, device="neuron")
    function = compiled(lambda x: (x, x.t(), x[1:], x.view(-1)[3:], x[0].unsqueeze(0)))
    function(x)
    outputs, work = counted(lambda: function(x))
    assert work["launches"] == 0
    for output in outputs:
        assert output.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert_same(outputs, (x, x.t(), x[1:], x.view(-1)[3:], x[0].unsqueeze(0)))
    outputs[2].add_(1)
    assert_same(x[1:], outputs[2])


def test_views_of_a_new_tensor_share_its_memory():
    def function(x):
        y = x + 1
        return y.t(), y, y[1:, 2], y.view(-1)[3:]

    moved, host = both(torch.randn(4, 6))
    outputs = compiled(function)(moved)
    assert_same(outputs, function(host))
    outputs[1].zero_()
    assert all(not output.any() for output in outputs[1:])


def test_a_returned_view_of_an_overwritten_input_shows_the_new_values():
    def function(x):
        x.mul_(2)
        return x, x.t(), x[1:] + 0

    moved, host = both(torch.randn(4, 4))
    assert_same(compiled(function)(moved), function(host))
    assert_same(moved, host)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_cache_is_written_in_place(dynamic):
    def function(cache, new, position):
        cache[:, position : position + 1] = new
        cache.index_copy_(1, torch.tensor([0], device=cache.device), new * 2)
        cache[torch.tensor([0, -1], device=cache.device), 2] = 7
        return cache.sum(1)

    moved, host = both(torch.zeros(2, 8, 4))
    step = compiled(function, dynamic=dynamic)
    for position in range(3, 6):
        new = torch.randn(2, 1, 4)
        assert_same(step(moved, new.to("neuron"), position), function(host, new, position))
        assert_same(moved, host)


def test_writes_come_after_the_reads_of_nodes_that_run_eagerly():
    def function(x):
        before = torch.unique(x.round()).sum() + x.exp()
        x.add_(1)
        return before, x * 2

    moved, host = both(torch.randn(20))
    assert_same(compiled(function)(moved), function(host))
    assert_same(moved, host)


_kinds = {
    "normalised": lambda x: F.layer_norm(x, x.shape[-1:]) + x.mean(1, keepdim=True),
    "statistics": lambda x: torch.cat([x.var(1), x.std(1), x.mean((0, 1))[None]]),
    "divided": lambda x: x / x.shape[1] + x.shape[0] ** 0.5,
    "halves": lambda x: x[:, : x.shape[1] // 2] * (x.shape[1] % 3 + 1),
    "flat": lambda x: x.reshape(x.shape[0] * x.shape[1], -1)[1 : x.shape[1] + 1],
    "padded": lambda x: F.pad(x, (0, 0, 1, 2)),
    "masked": lambda x: (x @ x.transpose(1, 2)).tril(),
    "positions": lambda x: x + torch.arange(x.shape[1], device=x.device)[:, None].float().cos(),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "batch_norm": lambda x: F.batch_norm(x.transpose(1, 2), None, None, training=True),
    "grown": lambda x: torch.cat([x, x[:, -1:].expand(-1, x.shape[0], -1)], 1),
    "numbers": lambda x: (x.sum(), x.shape[1] * 2, max(x.shape[0], 5)),
}


@pytest.mark.parametrize("kind", _kinds)
def test_new_sizes_are_lowered_without_compiling_code(kind):
    function = _kinds[kind]
    step = compiled(function, dynamic=True, fullgraph=True)
    for batch, length in ((2, 20), (4, 33), (3, 40), (5, 7), (4, 4), (2, 9)):
        step(torch.randn(batch, length, 8, device="neuron"))
    graphs = torch._dynamo.utils.counters["neuron"]["compiled_graphs"]
    inputs = [torch.randn(2 + n % 3, n, 8) for n in (5, 9, 21, 50, 64, 65)]
    moved = [x.to("neuron") for x in inputs]
    results, work = counted(lambda: [step(x) for x in moved])
    assert work["kernels_compiled"] == 0
    assert torch._dynamo.utils.counters["neuron"]["compiled_graphs"] == graphs
    for result, x in zip(results, inputs, strict=True):
        assert_same(result, function(x), rtol=1e-5, atol=1e-5)
    # Sizes that were seen are not lowered again.
    _, work = counted(lambda: [step(x) for x in moved])
    assert work["programs_built"] == 0


def test_a_float_that_changes_builds_nothing():
    step = compiled(lambda x, s: (x * s).sum() + s * 2)
    x = torch.randn(5)
    moved = x.to("neuron")
    for scale in (1.5, 2.5, 3.5):
        step(moved, scale)
    results, work = counted(lambda: [step(moved, scale) for scale in (4.5, 5.5, 6.5)])
    assert work["programs_built"] == 0
    assert_same(results, [(x * scale).sum() + scale * 2 for scale in (4.5, 5.5, 6.5)])


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.AdamW(p, lr=1e-2),
        lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
        lambda p: torch.optim.Adam(p, lr=1e-2, foreach=False),
    ],
)
def test_a_training_step_with_its_optimizer(make):
    model, twin = (nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)) for _ in range(2))
    twin.load_state_dict(model.state_dict())
    twin.to("neuron")

    def step(model, optimizer, x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    ours, theirs = make(twin.parameters()), make(model.parameters())
    fast = compiled(step)
    x, y = torch.randn(16, 6), torch.randint(3, (16,))
    for _ in range(3):
        got = fast(twin, ours, x.to("neuron"), y.to("neuron"))
        assert_same(got, step(model, theirs, x, y), rtol=1e-4, atol=1e-5)
    for wanted, moved in zip(model.parameters(), twin.parameters(), strict=True):
        assert_same(moved.detach(), wanted.detach(), rtol=1e-4, atol=1e-5)


def test_double_backward_is_refused_as_on_the_cpu():
    x = torch.randn(4, device="neuron", requires_grad=True)
    value = compiled(lambda x: (x**3).sum())(x)
    (gradient,) = torch.autograd.grad(value, x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        gradient.sum().backward()
