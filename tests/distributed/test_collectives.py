"""Every collective against a direct computation: dtypes, reductions, layouts, numbers of ranks."""

import math

import pytest
import ranks
import torch
import torch.distributed as dist

WORLDS = [1, 2, 3, 4]
FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]
DTYPES = [*FLOATS, *INTEGERS, torch.bool]
MOVED = [*DTYPES, *UNSIGNED, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2]


def values(rank, shape, dtype):
    """Small numbers, different on every rank, exact in every dtype."""
    count = math.prod(shape)
    numbers = (torch.arange(count) * 7 + rank * 5 + 1) % 4
    if dtype == torch.bool:
        return (numbers % 2 == 0).reshape(shape)
    if dtype.is_complex:
        return torch.complex(numbers.float(), (numbers + rank).float()).to(dtype).reshape(shape)
    return numbers.reshape(shape).to(dtype)


def reduced(op, tensors):
    """The reduction in rank order, on the CPU."""
    dtype = tensors[0].dtype
    wide = [t.to(torch.float64 if dtype.is_floating_point else torch.int64) for t in tensors]
    total = wide[0]
    for tensor in wide[1:]:
        if op in ("SUM", "AVG"):
            total = total + tensor
        elif op == "PRODUCT":
            total = total * tensor
        elif op == "MIN":
            total = torch.minimum(total, tensor)
        elif op == "MAX":
            total = torch.maximum(total, tensor)
        elif op == "BAND":
            total = total & tensor
        elif op == "BOR":
            total = total | tensor
        elif op == "BXOR":
            total = total ^ tensor
    if op == "AVG":
        floating = dtype.is_floating_point
        total = total / len(tensors) if floating else total.div(len(tensors), rounding_mode="trunc")
    if dtype == torch.bool:
        return total != 0
    return total.to(dtype)


def ops_of(dtype):
    names = ["SUM", "PRODUCT", "MIN", "MAX"]
    if dtype != torch.bool:
        names.append("AVG")
    if not dtype.is_floating_point:
        names += ["BAND", "BOR", "BXOR"]
    return names


def same(actual, expected, note):
    actual = actual.cpu()
    assert actual.dtype == expected.dtype and actual.shape == expected.shape, note
    if expected.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        actual, expected = actual.view(torch.uint8), expected.view(torch.uint8)
    torch.testing.assert_close(actual, expected, msg=lambda text: f"{note}: {text}")


def _all_reductions(rank, world):
    for dtype in DTYPES:
        _reductions(rank, world, dtype)


def _reductions(rank, world, dtype):
    shape = (3, 5)
    contributions = [values(r, shape, dtype) for r in range(world)]
    own = contributions[rank].to("neuron")
    for name in ops_of(dtype):
        op = getattr(dist.ReduceOp, name)
        expected = reduced(name, contributions)
        note = f"{name} of {dtype} on rank {rank} of {world}"

        tensor = own.clone()
        dist.all_reduce(tensor, op)
        same(tensor, expected, "all_reduce " + note)

        tensor = own.clone()
        dist.reduce(tensor, dst=world - 1, op=op)
        same(tensor, expected if rank == world - 1 else contributions[rank], "reduce " + note)

        parts = [values(rank + 3 * p, shape, dtype).to("neuron") for p in range(world)]
        mine = reduced(name, [values(r + 3 * rank, shape, dtype) for r in range(world)])
        output = torch.empty(shape, dtype=dtype, device="neuron")
        dist.reduce_scatter(output, parts, op)
        same(output, mine, "reduce_scatter " + note)

        output = torch.empty(shape, dtype=dtype, device="neuron")
        dist.reduce_scatter_tensor(output, torch.cat(parts), op)
        same(output, mine, "reduce_scatter_tensor " + note)


@pytest.mark.parametrize("world", WORLDS)
def test_reductions_of_all_dtypes(world):
    ranks.run(_all_reductions, world)


def layouts(tensor):
    """The same values behind other strides, as (name, make) pairs."""

    def column(t):
        wide = torch.zeros(*t.shape, 2, dtype=t.dtype, device=t.device)
        wide[..., 0] = t
        return wide[..., 0]

    def transposed(t):
        return t.transpose(0, -1).contiguous().transpose(0, -1)

    def offset(t):
        flat = torch.zeros(t.numel() + 3, dtype=t.dtype, device=t.device)
        flat[3:] = t.reshape(-1)
        return flat[3:].view(t.shape)

    yield "contiguous", lambda t: t.clone()
    yield "column", column
    yield "offset", offset
    if tensor.dim() > 1:
        yield "transposed", transposed
    if tensor.dim() == 4:
        yield "channels_last", lambda t: t.clone(memory_format=torch.channels_last)


def _all_movements(rank, world):
    for dtype in MOVED:
        _movements(rank, world, dtype, (2, 3))


def _movements(rank, world, dtype, shape):
    contributions = [values(r, shape, dtype) for r in range(world)]
    for name, lay in layouts(contributions[0]):
        note = f"{dtype} {shape} {name} on rank {rank} of {world}"

        def fresh(value):
            return lay(value.to("neuron"))  # noqa: B023

        def blank():
            return lay(torch.zeros(shape, dtype=dtype, device="neuron"))  # noqa: B023

        own = fresh(contributions[rank])
        outputs = [blank() for _ in range(world)]
        dist.all_gather(outputs, own)
        for output, expected in zip(outputs, contributions, strict=True):
            same(output, expected, "all_gather " + note)

        stacked = torch.zeros(world * math.prod(shape), dtype=dtype, device="neuron")
        dist.all_gather_into_tensor(stacked, own)
        expected = torch.cat([c.reshape(-1) for c in contributions])
        same(stacked, expected, "all_gather_into_tensor " + note)

        root = world // 2
        tensor = fresh(contributions[rank])
        dist.broadcast(tensor, src=root)
        same(tensor, contributions[root], "broadcast " + note)

        outputs = [blank() for _ in range(world)] if rank == root else None
        dist.gather(own, outputs, dst=root)
        for output, expected in zip(outputs or [], contributions, strict=False):
            same(output, expected, "gather " + note)

        inputs = [fresh(c) for c in contributions] if rank == root else None
        output = blank()
        dist.scatter(output, inputs, src=root)
        same(output, contributions[rank], "scatter " + note)

        inputs = [fresh(values(rank + 2 * p, shape, dtype)) for p in range(world)]
        outputs = [blank() for _ in range(world)]
        dist.all_to_all(outputs, inputs)
        for peer, output in enumerate(outputs):
            same(output, values(peer + 2 * rank, shape, dtype), "all_to_all " + note)

        if world > 1:
            work = dist.isend(own, (rank + 1) % world)
            output = blank()
            dist.recv(output, (rank - 1) % world)
            work.wait()
            same(output, contributions[rank - 1], "send and recv " + note)


@pytest.mark.parametrize("world", WORLDS)
def test_movements_of_all_dtypes(world):
    ranks.run(_all_movements, world)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (0, 3), (2, 3, 2, 2), (1000,)])
def test_movements_of_all_layouts(shape):
    if shape == (0,) or shape == (0, 3):
        ranks.run(_empties, 2, shape)
    else:
        ranks.run(_movements, 3, torch.float32, shape)


def _empties(rank, world, shape):
    empty = torch.zeros(shape, device="neuron")
    dist.all_reduce(empty)
    dist.broadcast(empty, 0)
    dist.all_gather([torch.zeros(shape, device="neuron") for _ in range(world)], empty)
    dist.all_gather_into_tensor(torch.zeros(0, device="neuron"), empty)
    dist.reduce_scatter_tensor(empty, torch.zeros(0, device="neuron"))
    dist.all_to_all_single(empty, empty)
    work = dist.isend(empty, (rank + 1) % world)
    dist.recv(torch.zeros(shape, device="neuron"), (rank - 1) % world)
    work.wait()


def _lazy_bits(rank, world):
    z = torch.tensor([1 + 2j, 3 - 1j]) * (rank + 1)
    conj, neg = z.to("neuron").conj(), torch._neg_view(z.to("neuron"))
    peer, group = 1 - rank, dist.group.WORLD  # The Python functions refuse conj views themselves.
    output = torch.zeros(2, dtype=z.dtype, device="neuron")
    for tensor, expected in ((conj, [1 - 2j, 3 + 1j]), (neg, [-1 - 2j, -3 + 1j])):
        work = group.send([tensor], peer, 0)
        group.recv([output], peer, 0).wait()
        work.wait()
        same(output, torch.tensor(expected) * (peer + 1), "lazy bits of an input")
        outputs = [torch.zeros_like(output) for _ in range(world)]
        group.alltoall(outputs, [tensor] * world).wait()
        same(outputs[peer], torch.tensor(expected) * (peer + 1), "lazy bits of an input")
    total = z.to("neuron")
    dist.all_reduce(total)
    same(total, torch.tensor([1 + 2j, 3 - 1j]) * sum(range(1, world + 1)), "complex sum")
    grown = torch.ones(3, device="neuron", requires_grad=True)
    dist.all_reduce(grown)
    assert grown.requires_grad and grown.is_leaf
    column = torch.ones(3, 2, device="neuron", requires_grad=True).detach()[:, 0]
    column.requires_grad_()
    dist.all_reduce(column)
    same(column.detach(), torch.full((3,), float(world)), "a leaf that needs a gradient")


def test_lazy_bits_and_autograd_leaves():
    ranks.run(_lazy_bits, 2)


def _premultiplied(rank, world):
    for dtype in FLOATS:
        for factor in (0.5, torch.tensor(0.25, device="neuron")):
            op = dist._make_nccl_premul_sum(factor)
            tensor = torch.full((5,), float(rank + 1), dtype=dtype, device="neuron")
            dist.all_reduce(tensor, op)
            total = float(factor) * sum(range(1, world + 1))
            same(tensor, torch.full((5,), total, dtype=dtype), f"{dtype} {factor}")
    output = torch.zeros(2, device="neuron")
    tensor = torch.ones(2 * world, device="neuron")
    dist.reduce_scatter_tensor(output, tensor, dist._make_nccl_premul_sum(0.5))
    same(output, torch.full((2,), 0.5 * world), "reduce_scatter_tensor")


def test_premultiplied_sums():
    ranks.run(_premultiplied, 3)


def _uneven(rank, world, seed):
    generator = torch.Generator().manual_seed(seed)

    def draw(high):
        return int(torch.randint(high, (), generator=generator))

    for _ in range(12):
        width = draw(3) + 1
        counts = [[draw(5) for _ in range(world)] for _ in range(world)]
        data = [torch.randn(sum(row), width, generator=generator) for row in counts]
        receives = [counts[source][rank] for source in range(world)]
        output = torch.empty(sum(receives), width, device="neuron")
        dist.all_to_all_single(output, data[rank].to("neuron"), receives, counts[rank])
        pieces = [data[source].split(counts[source])[rank] for source in range(world)]
        same(output, torch.cat(pieces), "all_to_all_single")

        outputs = [torch.empty(n, width, device="neuron") for n in receives]
        inputs = [p.to("neuron") for p in data[rank].split(counts[rank])]
        dist.all_to_all(outputs, inputs)
        for got, expected in zip(outputs, pieces, strict=True):
            same(got, expected, "all_to_all")

        sizes = [draw(6) for _ in range(world)]
        contributions = [torch.randn(n, width, generator=generator) for n in sizes]
        outputs = [torch.empty(n, width, device="neuron") for n in sizes]
        dist.all_gather(outputs, contributions[rank].to("neuron"))
        for got, expected in zip(outputs, contributions, strict=True):
            same(got, expected, "all_gather of uneven sizes")

        parts = [[torch.randn(n, width, generator=generator) for n in sizes] for _ in range(world)]
        output = torch.empty(sizes[rank], width, device="neuron")
        dist.reduce_scatter(output, [p.to("neuron") for p in parts[rank]])
        same(output, sum(p[rank] for p in parts), "reduce_scatter of uneven sizes")


@pytest.mark.parametrize("world", [2, 3, 4])
def test_uneven_sizes(world):
    for seed in range(2):
        ranks.run(_uneven, world, seed)


def _coalesced(rank, world):
    tensors = [torch.full((n,), float(rank + n), device="neuron") for n in (1, 3, 0, 5)]
    dist.all_reduce_coalesced(tensors)
    for n, tensor in zip((1, 3, 0, 5), tensors, strict=True):
        same(tensor, torch.full((n,), float(sum(r + n for r in range(world)))), "coalesced")
    sources = [torch.full((n,), float(rank), device="neuron") for n in (2, 3)]
    targets = [torch.zeros(n * world, device="neuron") for n in (2, 3)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for source, target in zip(sources, targets, strict=True):
            dist.all_gather_into_tensor(target, source)
    manager.wait()
    for n, target in zip((2, 3), targets, strict=True):
        same(target, torch.arange(world).repeat_interleave(n).float(), "coalesced all_gather")
    outputs = [torch.zeros(n, device="neuron") for n in (2, 3)]
    with dist._coalescing_manager():
        for output, target in zip(outputs, targets, strict=True):
            dist.reduce_scatter_tensor(output, target)
    for n, output in zip((2, 3), outputs, strict=True):
        same(output, torch.full((n,), float(rank * world)), "coalesced reduce_scatter")
    device = torch.device("neuron", torch.neuron.current_device())
    tensors = [torch.ones(3, device="neuron").expand(2, 3).t() for _ in range(2)]
    tensors = [t.contiguous().t() for t in tensors]
    with dist._coalescing_manager(device=device):
        for tensor in tensors:
            dist.broadcast(tensor, 0)
    reached = dist.batch_isend_irecv(
        [
            dist.P2POp(
                dist.isend, torch.full((4,), float(rank), device="neuron"), (rank + 1) % world
            ),
            dist.P2POp(dist.irecv, received := torch.zeros(4, device="neuron"), (rank - 1) % world),
        ]
    )
    for work in reached:
        work.wait()
    same(received, torch.full((4,), float((rank - 1) % world)), "batch_isend_irecv")


@pytest.mark.parametrize("world", [2, 3])
def test_coalesced_forms(world):
    ranks.run(_coalesced, world)


def _anyone(rank, world):
    if rank == 0:
        senders = set()
        for _ in range(world - 1):
            tensor = torch.zeros(2, device="neuron")
            source = dist.recv(tensor)
            assert tensor.tolist() == [float(source)] * 2
            senders.add(source)
        assert senders == set(range(1, world))
    else:
        dist.send(torch.full((2,), float(rank), device="neuron"), 0)
    # Tags keep transfers apart.
    if rank == 0:
        for tag in (1, 2):
            dist.send(torch.full((1,), float(tag), device="neuron"), 1, tag=tag)
    elif rank == 1:
        for tag in (2, 1):
            tensor = torch.zeros(1, device="neuron")
            dist.recv(tensor, 0, tag=tag)
            assert tensor.item() == tag


def test_receive_from_anyone_and_tags():
    ranks.run(_anyone, 4)


def _subgroups(rank, world):
    evens = dist.new_group([0, 2])
    odds = dist.new_group([1, 3])
    last = dist.new_group([3, 1, 2])
    mine = evens if rank % 2 == 0 else odds
    tensor = torch.full((2,), float(rank), device="neuron")
    dist.all_reduce(tensor, group=mine)
    assert tensor.tolist() == [2.0 if rank % 2 == 0 else 4.0] * 2
    dist.barrier(group=mine)
    dist.barrier(group=mine, device_ids=[torch.neuron.current_device()])
    if rank != 0:
        tensor = torch.full((1,), float(rank), device="neuron")
        dist.broadcast(tensor, src=3, group=last)
        assert tensor.item() == 3
        dist.destroy_process_group(last)
    again = dist.new_group([0, 2])
    if rank % 2 == 0:
        dist.barrier(group=again)
    dist.barrier()


def test_subgroups():
    ranks.run(_subgroups, 4)


def _eight(rank, world):
    tensor = torch.arange(1000.0, device="neuron") + rank
    dist.all_reduce(tensor)
    same(tensor, torch.arange(1000.0) * world + sum(range(world)), "all_reduce of 8 ranks")
    output = torch.zeros(world, device="neuron")
    dist.all_to_all_single(output, torch.arange(float(world), device="neuron") + 10 * rank)
    same(output, torch.arange(world) * 10.0 + rank, "all_to_all_single of 8 ranks")


def test_eight_ranks():
    ranks.run(_eight, 8, limit=120)
