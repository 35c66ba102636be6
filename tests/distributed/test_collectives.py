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
    for dtype in DTYPES:
        ranks.run(_reductions, world, dtype)
