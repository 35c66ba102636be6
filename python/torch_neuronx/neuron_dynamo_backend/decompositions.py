"""Which ATen ops are decomposed while tracing: those of torch's tables that have no lowering."""

import functools

import torch

from torch_neuronx import _C


def op_name(op: torch._ops.OpOverload) -> str:
    """ "aten::add.Tensor"; the default overload has no suffix."""
    return op.name()


@functools.cache
def decomposition_table() -> dict:
    from torch._decomp import core_aten_decompositions, get_decompositions

    aten = torch.ops.aten
    table = dict(core_aten_decompositions())
    table.update(
        get_decompositions(
            [
                aten.native_batch_norm_backward,
                aten.native_layer_norm_backward,
                aten.native_group_norm_backward,
                aten.embedding_dense_backward,
                aten._unsafe_masked_index,
                aten._unsafe_masked_index_put_accumulate,
                aten.nll_loss_forward,
                aten.nll_loss_backward,
                aten.huber_loss_backward,
                aten.grid_sampler_2d,
                aten.native_dropout_backward,
                aten.unfold_backward,
            ]
        )
    )
    return {
        op: rule
        for op, rule in table.items()
        if not (isinstance(op, torch._ops.OpOverload) and _C._has_lowering(op_name(op)))
    }
