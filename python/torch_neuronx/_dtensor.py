"""What torch.distributed.tensor does not know of this device: how its attention is sharded.

On other devices scaled_dot_product_attention becomes an operator for which DTensor and context
parallelism have rules. Here it becomes ``_scaled_dot_product_fused_attention_overrideable``.
"""

import sys

import torch

_RULES = "torch.distributed.tensor._ops._matrix_ops"
_RING = "torch.distributed.tensor.experimental._context_parallel._attention"


def prepare(when_imported) -> None:
    """Adds the rules when torch's own are loaded."""
    when_imported(_RULES, _add_rules)
    when_imported(_RING, _add_ring)


def _forward():
    return torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default


def _backward():
    return torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward.default


def _bias_placement(bias, dim):
    """A bias is broadcast: it is cut only where it has the dim in full."""
    from torch.distributed.tensor import Replicate, Shard

    whole = dim - 4 + len(bias.shape)
    return Shard(whole) if whole >= 0 and bias.shape[whole] != 1 else Replicate()


def _forward_placements(schema, dims):
    """Per way of cutting: placements of the results, then of the tensors among the arguments."""
    from torch.distributed.tensor import Replicate, Shard

    bias = schema.args_schema[3] if len(schema.args_schema) > 3 else None
    for dim in dims:
        cut = Replicate() if dim is None else Shard(dim)
        results = [cut, cut, None, None, None, None, None, None, None]
        arguments = [cut, cut, cut]
        if bias is not None:
            arguments.append(Replicate() if dim is None else _bias_placement(bias, dim))
        yield results + arguments


def _backward_placements(schema, dims):
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor._op_schema import OpStrategy

    for dim in dims:
        cut = Replicate() if dim is None else Shard(dim)
        of_bias = grad_of_bias = None
        arguments = []
        for position, argument in enumerate(schema.args_schema):
            if not isinstance(argument, OpStrategy):
                continue
            if position == 4:
                of_bias = Replicate() if dim is None else _bias_placement(argument, dim)
                arguments.append(of_bias)
            else:
                # Gradient, query, key, value, output and logsumexp; the rest are scalars.
                arguments.append(cut if position < 8 else Replicate())
        if of_bias is not None and schema.args_schema[5][3]:
            grad_of_bias = Partial() if of_bias.is_replicate() and dim is not None else of_bias
        yield [cut, cut, cut, grad_of_bias, *arguments]


def _strategy(placements, results, dims):
    from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy

    def strategy(schema):
        mesh = schema.get_mesh_from_args(validate=False)
        return expand_to_full_mesh_op_strategy(
            mesh, schema, list(placements(schema, dims)), input_index=results
        )

    return strategy


def _rules(dims):
    from torch.distributed.tensor._op_schema import RuntimeSchemaInfo

    return (
        (_forward(), _strategy(_forward_placements, 9, dims), RuntimeSchemaInfo(4)),
        (_backward(), _strategy(_backward_placements, 4, dims), RuntimeSchemaInfo(5)),
    )


def _add_rules() -> None:
    from torch.distributed.tensor._ops.utils import register_op_strategy

    # Whole, or cut along batch or heads.
    for op, strategy, info in _rules((None, 0, 1)):
        register_op_strategy(op, schema_info=info)(strategy)


def _ring_forward(ring, mesh, query, key, value, attn_bias=None, *options, **named):
    names = ("dropout_p", "is_causal", "return_debug_mask")
    named = {**dict(zip(names, options, strict=False)), **named}
    if attn_bias is not None:
        raise NotImplementedError("attn_bias is not supported with context parallelism")
    return ring._templated_ring_attention(
        mesh.get_group(), 2, _forward(), query=query, key=key, value=value, **named
    )


def _ring_backward(ring, mesh, grad_out, query, key, value, *rest, scale=None):
    names = [
        "attn_bias",
        "grad_input_mask",
        "out",
        "logsumexp",
        "cum_seq_q",
        "cum_seq_k",
        "max_q",
        "max_k",
        "dropout_p",
        "is_causal",
        "philox_seed",
        "philox_offset",
    ]
    named = dict(zip(names, rest, strict=True))
    return ring._templated_ring_attention_backward(
        mesh.get_group(),
        2,
        _backward(),
        grad_out=grad_out,
        grad_out_name="grad_out",
        query=query,
        key=key,
        value=value,
        scale=scale,
        **named,
    )


def _add_ring() -> None:
    ring = sys.modules[_RING]
    from torch.distributed.tensor.experimental._context_parallel import _sharding_rules as rules

    def handler(op, args, kwargs):
        dispatcher = ring.DTensor._op_dispatcher
        info = dispatcher.unwrap_to_op_info(op, args, kwargs)
        dispatcher.sharding_propagator.propagate(info)
        sharding = info.output_sharding
        if sharding.needs_redistribute:
            raise RuntimeError("context parallelism: query, key and value must be cut alike")
        attend = _ring_forward if op == _forward() else _ring_backward
        results = attend(ring, info.compute_mesh, *info.local_args, **info.local_kwargs)
        return dispatcher.wrap(results, sharding.output_spec)

    plain = rules.register_cp_sharding_rules

    def register_cp_sharding_rules():
        if rules._cp_strategy_contexts:
            return
        plain()
        for op, strategy, info in _rules((None, 0, 1, rules.SEQ_DIM)):
            context = rules._op_strategy_context(op, strategy, info)
            rules._original_strategies[op] = context.__enter__()
            rules._cp_strategy_contexts[op] = context

    rules.register_cp_sharding_rules = register_cp_sharding_rules
    ring.custom_ops[_forward()] = handler
    ring.custom_ops[_backward()] = handler
