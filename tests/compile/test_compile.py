import pytest
import torch
import torch.nn.functional as F
from conftest import assert_same, both
from torch import nn


def compiled(function, **options):
    return torch.compile(function, backend="neuron", **options)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.gelu(x) * 2 + x.sum(-1, keepdim=True),
        lambda x: x.softmax(-1) @ x.transpose(-1, -2),
        lambda x: F.layer_norm(x, x.shape[-1:]),
        lambda x: x[:, 1:].flip(-1) + x[:, :-1],
        lambda x: torch.cat([x, x * 2], 1).sum((0, 1)),
        lambda x: (x.to(torch.bfloat16) + 1).float().amax(1),
        lambda x: torch.where(x > 0, x, x.exp()).cumsum(-1),
        lambda x: (x.argmax(-1), x.topk(2).values, x.sort(-1).indices),
    ],
    ids=range(8),
)
def test_functions_agree_with_the_cpu(function):
    moved, host = both(torch.randn(4, 6, 5))
    assert_same(compiled(function, fullgraph=True)(moved), function(host))


def test_inputs_may_be_views():
    moved, host = both(torch.randn(10, 12))
    function = compiled(lambda x: x * 2 + 1)
    assert_same(function(moved[2:8:2, 3:].t()), host[2:8:2, 3:].t() * 2 + 1)


def test_mutated_inputs():
    def function(x):
        x.add_(1)
        return x * 2

    moved, host = both(torch.randn(5))
    assert_same(compiled(function)(moved), function(host))
    assert_same(moved, host)


def test_backward_agrees():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    twin = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    twin.load_state_dict(model.state_dict())
    twin.to("neuron")
    x, y = torch.randn(32, 8), torch.randint(4, (32,))
    F.cross_entropy(model(x), y).backward()
    F.cross_entropy(compiled(twin)(x.to("neuron")), y.to("neuron")).backward()
    for expected, actual in zip(model.parameters(), twin.parameters(), strict=True):
        assert_same(actual.grad, expected.grad, rtol=1e-4, atol=1e-5)


def test_new_sizes_compile_no_kernel():
    import torch_neuronx

    function = compiled(lambda x: (x * 2).sin().sum(-1), dynamic=True)
    for n in (5, 9, 17):
        function(torch.randn(3, n, device="neuron"))
    before = torch_neuronx.get_runtime_stats()["kernels_compiled"]
    for n in range(20, 30):
        x = torch.randn(3, n)
        assert_same(function(x.to("neuron")), (x * 2).sin().sum(-1))
    assert torch_neuronx.get_runtime_stats()["kernels_compiled"] == before


def test_dropout_is_repeatable_and_advances():
    function = compiled(lambda x: F.dropout(x, 0.5))
    x = torch.ones(1000, device="neuron")
    torch.manual_seed(4)
    a, b = function(x), function(x)
    torch.manual_seed(4)
    assert torch.equal(function(x).cpu(), a.cpu()) and not torch.equal(a.cpu(), b.cpu())
    assert 300 < (a == 0).sum().item() < 700


def test_nodes_without_a_lowering_run_eagerly():
    def function(x):
        return torch.unique(x.round()).sum() + x.exp().sum()

    moved, host = both(torch.randn(20))
    assert_same(compiled(function)(moved), function(host))


def test_host_inputs_are_moved():
    function = compiled(lambda x, y: x + y.to(x.device))
    assert_same(function(torch.ones(3, device="neuron"), torch.ones(3)), torch.full((3,), 2.0))


def test_default_backend_takes_neuron_graphs_and_leaves_others_alone():
    function = torch.compile(lambda x: x * 2 + 1)
    assert_same(function(torch.ones(3, device="neuron")), torch.full((3,), 3.0))


def test_unknown_options_are_refused():
    with pytest.raises(Exception, match=r"unknown torch.compile options"):
        compiled(lambda x: x + 1, options={"no_such": 1})(torch.ones(1, device="neuron"))


def test_compiled_graphs_leave_a_record():
    import torch_neuronx

    torch_neuronx.reset_dynamo_metrics()
    compiled(lambda x: x.sin() + 1, options={"model_name": "small"})(torch.ones(3, device="neuron"))
    (record,) = torch.neuron.get_dynamo_metrics()
    assert record["graph_name"].startswith("small_") and record["model_name"] == "small"
    assert record["graph_node_count"] > 0 and record["torch_neuronx_lower_us"] > 0
    assert torch._dynamo.utils.counters["neuron"]["compiled_graphs"] == 1


def test_random_numbers_are_those_of_eager_mode():
    x = torch.ones(64, device="neuron")

    def function(x):
        return F.dropout(x, 0.5) + F.dropout(x, 0.5) * torch.rand_like(x)

    torch.manual_seed(4)
    expected = function(x).cpu()
    torch.manual_seed(4)
    assert_same(compiled(function)(x), expected)
