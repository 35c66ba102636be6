"""FX graph -> one recorded C++ graph; nodes without a lowering run eagerly in between."""

import operator
import time

import torch
from torch._dynamo.utils import dynamo_timed
from torch.fx.experimental.proxy_tensor import py_sym_types
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from torch_neuronx import _C
from torch_neuronx.neuron_dynamo_backend import metrics, settings
from torch_neuronx.neuron_dynamo_backend.decompositions import op_name
from torch_neuronx.neuron_dynamo_backend.exceptions import NEFFCompilationError
from torch_neuronx.neuron_dynamo_backend.record import GraphRecorder, primitive

aten = torch.ops.aten

# Namespaces of functional collectives.
_collectives = ("_c10d_functional::", "_c10d_functional_autograd::", "_dtensor::")


class _UnsupportedError(Exception):
    """A node that the device cannot lower, with the reason."""

    def __init__(self, node, reason):
        super().__init__(f"{node.format_node()}: {reason}")
        self.node = node


def lower_graph(gm: torch.fx.GraphModule, example_inputs, *, name: str):
    """A boxed callable (list of inputs -> list of outputs) for an AOTAutograd graph."""
    device = _device_of(gm)
    if device is None:
        return _boxed(_as_list(gm))
    refused = _host_work(gm)
    while True:
        if not any(_unsupported(node, refused) for node in gm.graph.nodes):
            try:
                return _compiled(gm, device, name)
            except _UnsupportedError as failure:
                refused.add(failure.node.name)
                continue
        if not settings.allows_fallback():
            node = next(n for n in gm.graph.nodes if _unsupported(n, refused))
            raise NEFFCompilationError(
                f"{name}: the device cannot run {node.format_node()}, and running it outside the "
                "program is forbidden (option fallback_execution, or "
                "TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION=1)"
            )
        if not any(_Support(refused).is_node_supported(None, n) for n in gm.graph.nodes):
            return _boxed(_as_list(gm))
        return _partitioned(gm, device, name, refused)


def _compiled(gm, device, name):
    """Records the graph and compiles it for the sizes that it was traced with."""
    recorder = GraphRecorder(gm, _C.Graph(name, device.index or 0))
    graph = recorder.graph
    try:
        with dynamo_timed("neuron_lower_graph"):
            recorder.record()
        with dynamo_timed("neuron_compile_graph"):
            start = time.perf_counter()
            hints = recorder.hints()
            if hints is not None:
                graph.specialise(hints)
            metrics.count_compile(time.perf_counter() - start)
    except NotImplementedError as failure:
        node = recorder.node
        if graph.refused_node >= 0:
            node = recorder.nodes[graph.refused_node]
        if node is None:
            raise
        raise _UnsupportedError(node, failure) from failure

    eager = _boxed(_as_list(gm))

    def run(inputs):
        try:
            return graph(inputs)
        except NotImplementedError:
            # Sizes that a lowering refuses: nothing has run yet, and the inputs are still there.
            if graph.refused_node < 0:
                raise
            return eager(inputs)

    run._boxed_call = True
    run.graph = graph
    return run


def _is_single(gm) -> bool:
    """The graph returns one value that is no tuple."""
    return not isinstance(gm.graph.output_node().args[0], (tuple, list))


def _as_list(gm):
    """Calls the module; the outputs are a list even if the graph has a single one."""
    if not _is_single(gm):
        return gm
    return lambda *args: [gm(*args)]


def _boxed(function):
    def run(inputs):
        given = tuple(inputs)
        inputs.clear()
        return function(*given)

    run._boxed_call = True
    return run


def _leaves(value):
    """The values in a node's meta: a value, or lists of them."""
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _device_of(gm):
    for node in gm.graph.nodes:
        for item in _leaves(node.meta.get("val")):
            if isinstance(item, torch.Tensor) and item.device.type == "neuron":
                return item.device
    return None


def _is_mutation(node) -> bool:
    return node.op == "call_function" and node.target is aten.copy_.default


def _is_number(value) -> bool:
    return isinstance(value, (*py_sym_types, int, float, bool)) and not isinstance(
        value, torch.Tensor
    )


def _unsupported(node, refused) -> bool:
    if node.op in ("placeholder", "output", "get_attr"):
        return False
    if node.name in refused:
        return True
    if node.op != "call_function":
        return True
    if node.target is operator.getitem:
        return _unsupported(node.args[0], refused)
    value = node.meta.get("val")
    if _is_number(value):
        # Reading a tensor's value makes the graph depend on data.
        return node.target in (aten._local_scalar_dense.default, aten.item.default)
    if not isinstance(node.target, torch._ops.OpOverload):
        return True
    if op_name(node.target) == "_c10d_functional::wait_tensor":
        # What the process group has started must be waited for by the process group.
        return not _is_collective(node.args[0]) or _unsupported(node.args[0], refused)
    if _is_mutation(node):
        target = node.args[0]
        return target.op != "placeholder" or target.meta["val"].device.type != "neuron"
    if node.target._schema.is_mutable:
        return True
    for item in _leaves(value):
        if isinstance(item, torch.Tensor):
            if item.layout != torch.strided:
                return True
        elif item is not None and not _is_number(item):
            return True
    return primitive(node.target) is None and not _C._has_lowering(op_name(node.target))


def _is_collective(node) -> bool:
    while node.op == "call_function" and node.target is operator.getitem:
        node = node.args[0]
    return isinstance(node.target, torch._ops.OpOverload) and op_name(node.target).startswith(
        _collectives
    )


def _host_work(gm) -> set[str]:
    """Names of the nodes that work on host tensors alone, if the graph writes some (the steps of an
    optimizer): done on the host they need no transfer back."""

    def on_host(value):
        return isinstance(value, torch.Tensor) and value.device.type == "cpu"

    if not any(_is_mutation(n) and on_host(n.args[0].meta.get("val")) for n in gm.graph.nodes):
        return set()
    names = set()
    for node in gm.graph.nodes:
        if node.op != "call_function":
            continue
        values = list(_leaves(node.meta.get("val")))
        values += [v for n in node.all_input_nodes for v in _leaves(n.meta.get("val"))]
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        if tensors and all(on_host(tensor) for tensor in tensors):
            names.add(node.name)
    return names


class _Support(OperatorSupportBase):
    def __init__(self, refused):
        self.refused = refused

    def is_node_supported(self, submodules, node):
        return node.op == "call_function" and not _unsupported(node, self.refused)


def _partitioned(gm, device, name, refused):
    """Splits the graph around the nodes that cannot be lowered; those run as eager ops."""
    mutated = _take_mutations_out(gm, lambda node: _unsupported(node, refused))
    while True:
        partitioner = CapabilityBasedPartitioner(
            gm, _Support(refused), allows_single_node_partition=True
        )
        partitions = partitioner.propose_partitions()
        homes = {n: i for i, part in enumerate(partitions) for n in part.nodes}
        more = _take_mutations_out(
            gm,
            lambda node, homes=homes: any(
                homes.get(reader) != homes.get(node) for reader in node.args[0].users
            ),
        )
        if not more:
            break
        mutated.extend(more)
        mutated.returned.extend(more.returned)
    fused = partitioner.fuse_partitions(partitions, prefix="neuron_")
    for node in list(fused.graph.nodes):
        if node.op != "call_module" or not str(node.target).startswith("neuron_"):
            continue
        part = fused.get_submodule(node.target)
        for placeholder, source in zip(
            part.graph.find_nodes(op="placeholder"), node.all_input_nodes, strict=False
        ):
            placeholder.meta.setdefault("val", source.meta.get("val"))
        compiled = lower_graph(part, None, name=f"{name}.{node.target}")

        class _Part(torch.nn.Module):
            def __init__(self, run, single):
                super().__init__()
                self.run, self.single = run, single

            def forward(self, *args):
                out = self.run(list(args))
                return out[0] if self.single else out

        single = _is_single(part)
        fused.delete_submodule(node.target)
        fused.add_submodule(node.target, _Part(compiled, single))
    fused.recompile()
    run_parts = _as_list(fused)
    if not mutated:
        return _boxed(run_parts)

    def run(*inputs):
        out = list(run_parts(*inputs))
        values = out[len(out) - len(mutated) :]
        del out[len(out) - len(mutated) :]
        for position, value in zip(mutated, values, strict=True):
            inputs[position].copy_(value)
        for at, position in mutated.returned:
            out[at] = inputs[position]
        return out

    return _boxed(run)


class _Mutated(list):
    """Numbers of the overwritten inputs; ``returned``: (output, input) that are handed back."""

    def __init__(self):
        super().__init__()
        self.returned = []


def _take_mutations_out(gm, leave) -> _Mutated:
    """Turns the writes to inputs for which ``leave(node)`` holds into outputs, in order: nothing
    else tells the partitioner that the other readers of those inputs come first."""
    placeholders = {n: i for i, n in enumerate(gm.graph.find_nodes(op="placeholder"))}
    writes = [
        n for n in gm.graph.nodes if _is_mutation(n) and n.args[0] in placeholders and leave(n)
    ]
    mutated = _Mutated()
    if not writes:
        return mutated
    output = gm.graph.output_node()
    outputs = list(output.args[0]) if not _is_single(gm) else [output.args[0]]
    for at, node in enumerate(outputs):
        if node in writes:
            mutated.returned.append((at, placeholders[node.args[0]]))
            outputs[at] = None
    for node in writes:
        mutated.append(placeholders[node.args[0]])
        outputs.append(node.args[1])
    output.args = (tuple(outputs),)
    for node in reversed(writes):
        node.replace_all_uses_with(node.args[1])
        gm.graph.erase_node(node)
    gm.recompile()
    return mutated
