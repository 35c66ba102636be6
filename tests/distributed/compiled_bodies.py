"""What each rank does in test_compiled_collectives.py."""

import datetime
import os

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch_neuronx
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.utils._pytree import tree_leaves

DEVICE = "neuron"


def launches_of(function, *arguments):
    """The result, and how many programs ran for it."""
    torch.accelerator.synchronize()  # Launches count when they run.
    before = torch_neuronx.get_runtime_stats()["launches"]
    result = function(*arguments)
    torch.accelerator.synchronize()
    return result, torch_neuronx.get_runtime_stats()["launches"] - before


def same(actual, expected, exact=True):
    tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-5, "atol": 1e-5}
    for a, e in zip(tree_leaves(actual), tree_leaves(expected), strict=True):
        torch.testing.assert_close(a.cpu(), e.cpu(), **tolerance)


def check(function, *inputs, programs=1):
    """Compiled, the function is one program and gives the bits of eager mode."""
    torch._dynamo.reset()
    expected = function(*inputs)
    compiled = torch.compile(function, backend="neuron", fullgraph=True)
    same(compiled(*inputs), expected)
    result, launched = launches_of(compiled, *inputs)
    same(result, expected)
    if programs is not None:
        assert launched == programs, (function, launched)


def numbers(rank, *shape, dtype=torch.float32):
    generator = torch.Generator().manual_seed(rank)
    values = torch.randn(shape, generator=generator) * 4
    return values.to(dtype).to(DEVICE)


def reductions(rank, world):
    group = dist.group.WORLD
    for dtype in (torch.float32, torch.bfloat16, torch.int32):
        x = numbers(rank, 2 * world, 3, dtype=dtype)
        kinds = ["sum", "product", "max", "min"]
        kinds += ["avg"] if dtype.is_floating_point else ["band", "bor"]

        def f(x, kinds=kinds):
            reduced = [functional.all_reduce(x + 1, kind, group) for kind in kinds]
            parts = [functional.reduce_scatter_tensor(x + 1, kind, 0, group) for kind in kinds]
            return [y + 1 for y in reduced + parts]

        check(f, x)


def movements(rank, world):
    group = dist.group.WORLD

    def f(x):
        y = x + 1
        return (
            functional.all_gather_tensor(y, 0, group) * 2,
            functional.all_gather_tensor(y, 1, group) * 2,
            functional.broadcast(y, world - 1, group) * 2,
        )

    dtypes = (torch.bfloat16, torch.int64, torch.bool, torch.complex64)
    for dtype in dtypes:
        x = numbers(rank, world, 4, dtype=dtype)
        if dtype == torch.bool:
            check(lambda x: functional.all_gather_tensor(~x, 0, group), x)
        else:
            check(f, x)
    # Not contiguous, in and out.
    check(lambda x: functional.all_reduce(x.t(), "sum", group).t(), numbers(rank, 3, 5))
    check(lambda x: functional.all_gather_tensor(x.t(), 0, group), numbers(rank, 3, 5))
    # Empty.
    check(
        lambda x: functional.all_gather_tensor(x, 0, group) + 1, numbers(rank, 0, 2), programs=None
    )


def lists(rank, world):
    group = dist.group.WORLD
    inputs = [numbers(rank, world, 2), numbers(rank + 10, 2 * world)]

    def f(a, b):
        return (
            *functional.all_reduce_coalesced([a + 1, b], "sum", group),
            *functional.all_gather_into_tensor_coalesced([a + 1, b], group),
            *functional.reduce_scatter_tensor_coalesced([a + 1, b], "sum", [0, 0], group),
        )

    check(f, *inputs)


def derivatives(rank, world):
    group = dist.group.WORLD

    def f(x):
        y = functional.all_gather_tensor_autograd(x.sin(), 0, group)
        y = functional.reduce_scatter_tensor_autograd(y.cos(), "sum", 0, group)
        return y.exp()

    x = numbers(rank, world, 3)
    gradients = []
    for run in (f, torch.compile(f, backend="neuron", fullgraph=True)):
        leaf = x.clone().requires_grad_()
        (out, launched) = launches_of(run, leaf)
        out.sum().backward()
        gradients.append((out.detach(), leaf.grad))
    assert launched == 1
    same(gradients[1], gradients[0], exact=False)


def in_place(rank, world):
    def f(x):
        y = x + 1
        dist.all_reduce(y)
        dist.all_reduce(x)
        return y * 2

    a, b = numbers(rank, 5), numbers(rank, 5)
    expected = f(a)
    same(torch.compile(f, backend="neuron", fullgraph=True)(b), expected)
    same(b, a)


def falls_back(rank, world):
    """What has no StableHLO collective runs between programs, with the same results."""
    group = dist.group.WORLD

    def uneven(x):
        splits = [rank + 1] * world
        received = [other + 1 for other in range(world)]
        return functional.all_to_all_single(x + 1, received, splits, group) * 2

    check(uneven, numbers(rank, (rank + 1) * world), programs=None)

    # Even on rank 0 alone: it must not wait for a program on the others.
    def half_even(x):
        splits = [2] * world if rank == 0 else [2] * (world - 1) + [3]
        received = [3 if rank == world - 1 and other > 0 else 2 for other in range(world)]
        return functional.all_to_all_single(x + 1, received, splits, group) * 2

    check(half_even, numbers(rank, 2 * world + (rank > 0)), programs=None)
    check(
        lambda x: functional.all_reduce(x + 1, "bxor", group) + 1,
        numbers(rank, 4, dtype=torch.int32),
        programs=None,
    )


def several_hosts(rank, world, store):
    os.environ["TORCH_NEURONX_HOST_ID"] = f"host{rank}"
    try:
        dist.init_process_group(
            "neuron",
            store=store,
            rank=rank,
            world_size=world,
            timeout=datetime.timedelta(seconds=20),
        )
        group = dist.group.WORLD
        check(
            lambda x: functional.all_reduce(x + 1, "sum", group) * 2,
            numbers(rank, 4),
            programs=3,  # Before, after, and the copy that the collective works on.
        )
    finally:
        del os.environ["TORCH_NEURONX_HOST_ID"]


def mesh(rank, world):
    """Both dims of a 2 x 2 mesh; all ranks make the same program."""
    both = init_device_mesh(DEVICE, (2, 2), mesh_dim_names=("a", "b"))

    def f(x):
        y = functional.all_reduce(x + 1, "sum", (both, 0))
        z = functional.all_gather_tensor(y * 2, 0, (both, 1))
        return functional.all_reduce(z, "max", dist.group.WORLD) + 1

    check(f, numbers(rank, 3))
    texts: list = [None] * world
    dist.all_gather_object(texts, text_of(f, numbers(rank, 3)))
    assert len(set(texts)) == 1, texts
    for groups in ("[[0, 2], [1, 3]]", "[[0, 1], [2, 3]]", "[[0, 1, 2, 3]]"):
        assert f"replica_groups = dense<{groups}>" in texts[0], texts[0]


def text_of(function, *inputs):
    """StableHLO of the function's graph."""
    from torch_neuronx.neuron_dynamo_backend import lower

    made = []

    class Bindings:
        def __getattr__(self, name):
            return getattr(bindings, name)

        def Graph(self, name, device):  # noqa: N802 (stands for the class)
            made.append(bindings.Graph("f", device, keep_text=True))
            return made[-1]

    torch._dynamo.reset()
    bindings, lower._C = lower._C, Bindings()
    try:
        torch.compile(function, backend="neuron", fullgraph=True)(*inputs)
    finally:
        lower._C = bindings
    return made[0].stablehlo


def dtensor(rank, world):
    one = init_device_mesh(DEVICE, (world,))
    whole = torch.arange(4.0 * world * 3).reshape(2 * world, 6).to(DEVICE)

    def f(d):
        moved = d.redistribute(one, [Shard(1)]) if 6 % world == 0 else d
        return moved.sin().redistribute(one, [Replicate()]).to_local()

    sharded = distribute_tensor(whole, one, [Shard(0)])
    check(f, sharded)


def tensor_parallel_step(rank, world):
    """Forward and backward are a program each."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6)).to(DEVICE)
    one = init_device_mesh(DEVICE, (world,))
    parallelize_module(model, one, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    compiled = torch.compile(model, backend="neuron")
    x = numbers(0, 4, 6).requires_grad_()
    expected = model(x)
    compiled(x).sum().backward()
    out, launched = launches_of(compiled, x)
    same(out, expected, exact=False)
    assert launched == 1, launched
    _, launched = launches_of(lambda: torch.autograd.grad(out, x, torch.ones_like(out)))
    assert launched <= 2, launched  # The ones, and the backward graph.


def absent_rank(rank, world):
    """A rank that does not come is an error on the others, with the operation's name."""
    group = dist.group.WORLD

    def f(x):
        return functional.all_reduce(x + 1, "sum", group) * 2

    compiled = torch.compile(f, backend="neuron", fullgraph=True)
    x = numbers(rank, 4)
    compiled(x)
    store = dist.distributed_c10d._get_default_store()
    dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=2), group)
    if rank == 0:
        try:
            compiled(x).cpu()
        except dist.DistBackendError as error:
            text = str(error)
        else:
            text = "no error"
        store.set("told", "x")
        for part in ("all_reduce", "rank 1", "2000 ms"):
            assert part in text, text
    else:
        store.wait(["told"], datetime.timedelta(seconds=20))


def mismatch(rank, world):
    group = dist.group.WORLD

    def f(x, kind):
        return functional.all_reduce(x + 1, kind, group) * 2

    compiled = torch.compile(f, backend="neuron", fullgraph=True)
    x = numbers(rank, 4)
    try:
        compiled(x, "sum" if rank == 0 else "max").cpu()
    except dist.DistBackendError as error:
        text = str(error)
    else:
        text = "no error"
    assert "all_reduce" in text and "sum" in text and "max" in text, text
    # The group is in order afterwards.
    same(compiled(x, "sum"), f(x, "sum"))


def captured(rank, world):
    group = dist.group.WORLD
    compiled = torch.compile(
        lambda x: functional.all_reduce(x * 2, "sum", group) + 1, backend="neuron", fullgraph=True
    )
    x = torch.ones(4, device=DEVICE)
    compiled(x)
    programs = torch.accelerator.Graph()
    stream = torch.Stream(device=DEVICE)
    with stream, programs:
        y = compiled(x)
    eager = torch.accelerator.Graph()
    z = torch.zeros(4, 3, device=DEVICE)
    with stream, eager:
        z += 1
        columns = z.t()  # Goes through a temporary.
        dist.all_reduce(columns)
        w = z * 10
    assert z.sum().item() == 0
    expected = 0.0
    for value in (1.0, rank + 3.0):
        x.fill_(value)
        programs.replay()
        total = value * world if value == 1.0 else sum(r + 3.0 for r in range(world))
        assert y.tolist() == [2 * total + 1] * 4
        eager.replay()
        expected = (expected + 1) * world
        assert z.eq(expected).all() and w.eq(10 * expected).all(), (z, expected)
