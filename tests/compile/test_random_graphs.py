"""Random small graphs: compiled gives what eager mode on the CPU gives, forward and backward."""

import random

import pytest
import torch
import torch.nn.functional as F
from conftest import assert_same


def add_in_place(x, y):
    return x.clone().add_(y)


def double_some_rows(x, y):
    z = x.clone()
    z[::2] = z[::2] * 2
    return z


def change_a_column(x, y):
    z = x * 1
    z.t()[0].sub_(0.5)
    return z


def add_rows(x, y):
    return x.clone().index_add_(0, torch.tensor([0, 0], device=x.device), y[:2])


def reverse_rows(x, y):
    return x[torch.arange(x.shape[0] - 1, -1, -1, device=x.device)]


OPERATIONS = [
    lambda x, y: x + y,
    lambda x, y: x * y.tanh(),
    lambda x, y: x * 0.5 + 1,
    lambda x, y: F.gelu(x),
    lambda x, y: x.sigmoid() * y,
    lambda x, y: torch.where(x > 0, x, y * 0.1),
    lambda x, y: x.clamp(-1, 1.5),
    lambda x, y: x / (y.abs() + 1),
    lambda x, y: x.softmax(-1),
    lambda x, y: F.layer_norm(x, x.shape[-1:]),
    lambda x, y: x - x.mean(0, keepdim=True),
    lambda x, y: x.cumsum(0).tanh(),
    lambda x, y: x.flip(0),
    lambda x, y: torch.cat([x[x.shape[0] // 2 :], y[: x.shape[0] // 2]]),
    lambda x, y: x.t().contiguous().t(),
    lambda x, y: (x @ y.t()).tanh() @ x,
    lambda x, y: x.reshape(-1).view(x.shape),
    lambda x, y: F.pad(x, (1, 1))[:, 1:-1],
    lambda x, y: x.unsqueeze(0).expand(3, -1, -1).sum(0),
    lambda x, y: x.roll(1, 1),
    lambda x, y: x.amax(1, keepdim=True) - y,
    add_in_place,
    double_some_rows,
    change_a_column,
    add_rows,
    reverse_rows,
]


def random_function(seed):
    """A function of two matrices of one shape."""
    rng = random.Random(seed)
    steps = [
        (rng.choice(OPERATIONS), rng.randrange(2 + k), rng.randrange(2 + k))
        for k in range(rng.randrange(3, 9))
    ]
    first, second = rng.randrange(2 + len(steps)), rng.randrange(2 + len(steps))

    def function(a, b):
        values = [a, b]
        for operation, i, j in steps:
            values.append(operation(values[i], values[j]))
        last = values[-1]
        return last, values[first].t(), values[second][1:], last.sum(), a.shape[0] + 1

    return function


def detached(tree):
    return torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, tree)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_random_graphs(seed, dynamic):
    function = random_function(seed)
    step = torch.compile(function, backend="neuron", dynamic=dynamic, fullgraph=True)
    torch.manual_seed(seed)
    for rows in (4, 7, 5) if dynamic else (4,):
        host = [torch.randn(rows, 6, requires_grad=True) for _ in range(2)]
        moved = [x.detach().to("neuron").requires_grad_() for x in host]
        expected, got = function(*host), step(*moved)
        assert_same(detached(got), detached(expected), rtol=1e-4, atol=1e-4)
        for results in (expected, got):
            sum(x.square().sum() for x in results[:4] if x.requires_grad).backward()
        for x, y in zip(host, moved, strict=True):
            assert (x.grad is None) == (y.grad is None)
            if x.grad is not None:
                assert_same(y.grad, x.grad, rtol=1e-3, atol=1e-3)
