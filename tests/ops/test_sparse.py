"""Sparse tensors live on the device; what has no kernel there is computed on the CPU."""

import pytest
import torch
import torch_neuronx
from conftest import DEVICE, assert_same


def coo(device):
    indices = torch.tensor([[0, 1, 1, 0], [2, 0, 2, 2]], device=device)
    values = torch.tensor([3.0, 4, 5, 1], device=device)
    return torch.sparse_coo_tensor(indices, values, (2, 3), check_invariants=False)


def test_build_coalesce_and_multiply():
    moved, host = coo(DEVICE), coo("cpu")
    assert moved.device.type == "neuron" and moved._values().device.type == "neuron"
    assert_same(moved.to_dense(), host.to_dense())
    assert_same(moved.coalesce().values(), host.coalesce().values())
    matrix = torch.randn(3, 2)
    assert_same(torch.sparse.mm(moved, matrix.to(DEVICE)), torch.sparse.mm(host, matrix))


def test_modules_with_sparse_buffers_move():
    module = torch.nn.Module()
    module.register_buffer("heads", torch.eye(3, dtype=torch.bool).to_sparse(), persistent=False)
    module.to(DEVICE)
    assert module.heads.device.type == "neuron"
    assert_same(module.heads.indices(), torch.eye(3).to_sparse().indices())
    assert_same(module.heads.to("cpu").to_dense(), torch.eye(3, dtype=torch.bool))


def test_fallbacks_are_counted_and_can_be_refused():
    made = coo(DEVICE)
    torch_neuronx.clear_op_tracking()
    made.to_dense()
    assert any("to_dense" in name for name in torch_neuronx.get_fallback_ops())
    with (
        torch_neuronx.debug.no_fallback(),
        pytest.raises(NotImplementedError, match="CPU fallback is off"),
    ):
        made.to_dense()


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr])
def test_compressed_layouts(layout):
    dense = torch.tensor([[1.0, 0, 2, 0], [0, 0, 0, 3], [4, 0, 0, 0], [0, 5, 0, 6]])
    options = {"blocksize": (2, 2)} if layout == torch.sparse_bsr else {}
    made = dense.to(DEVICE).to_sparse(layout=layout, **options)
    host = dense.to_sparse(layout=layout, **options)
    assert made.layout == layout and made.device.type == "neuron"
    assert_same(made.values(), host.values())
    assert_same(made.to_dense(), dense)
    moved = host.to(DEVICE)
    assert moved.layout == layout and moved.values().device.type == "neuron"
    assert_same(moved.cpu().to_dense(), dense)
    assert_same(moved.clone().to_dense(), dense)
    matrix = torch.randn(4, 3)
    assert_same(moved @ matrix.to(DEVICE), dense @ matrix)
