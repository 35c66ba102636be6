"""Attention over DTensors, cut along batch or heads, and over a sequence that ranks share."""

import pytest
import ranks
import torch
import torch.distributed as dist
import torch.nn.functional as F


def close(actual, expected):
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-4)


def inputs(length):
    generator = torch.Generator().manual_seed(0)
    shape = (4, 4, length, 4)
    return [torch.randn(shape, generator=generator) for _ in range(3)]


def reference(tensors, bias=None, causal=False):
    tensors = [t.clone().requires_grad_() for t in tensors]
    bias = bias.clone().requires_grad_() if bias is not None else None
    output = F.scaled_dot_product_attention(*tensors, bias, is_causal=causal)
    output.square().sum().backward()
    grads = [t.grad for t in tensors] + ([bias.grad] if bias is not None else [])
    return output.detach(), grads


def _cut(rank, world):
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = dist.init_device_mesh("neuron", (world,))
    plain = inputs(6)
    for placement in (Shard(0), Shard(1), Replicate(), Shard(2)):
        for bias in (None, torch.randn(4, 1, 6, 6, generator=torch.Generator().manual_seed(1))):
            output, grads = reference(plain, bias)
            cut = [distribute_tensor(t.to("neuron"), mesh, [placement]) for t in plain]
            if bias is not None:
                cut.append(distribute_tensor(bias.to("neuron"), mesh, [Replicate()]))
            for tensor in cut:
                tensor.requires_grad_()
            got = F.scaled_dot_product_attention(*cut)
            got.square().sum().backward()
            close(got.detach().full_tensor(), output)
            for tensor, expected in zip(cut, grads, strict=True):
                close(tensor.grad.full_tensor(), expected)


def test_attention_of_dtensors():
    ranks.run(_cut, 3)


def _ring(rank, world, method):
    from torch.distributed.tensor.experimental import _attention as ring
    from torch.distributed.tensor.experimental import context_parallel

    ring.set_rotate_method(method)
    mesh = dist.init_device_mesh("neuron", (world,))
    plain = inputs(4 * world)
    for causal in (True, False):
        ring._cp_options.enable_load_balance = causal
        output, grads = reference(plain, causal=causal)
        buffers = [t.to("neuron") for t in plain]
        with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2, 2, 2]):
            parts = [t.detach().clone().requires_grad_() for t in buffers]
            got = F.scaled_dot_product_attention(*parts, is_causal=causal)
            got.square().sum().backward()
        results = [got.detach(), *(part.grad for part in parts)]
        results = ring.context_parallel_unshard(mesh, results, [2] * 4)
        for actual, expected in zip(results, [output, *grads], strict=True):
            close(actual, expected)


@pytest.mark.parametrize("method", ["allgather", "alltoall"])
def test_context_parallel_attention(method):
    ranks.run(_ring, 2, method)
    ranks.run(_ring, 4, method)
