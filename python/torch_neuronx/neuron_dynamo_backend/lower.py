"""FX graph -> one C++ graph -> one program; nodes without a lowering run eagerly in between."""

import operator
import time

import torch
from torch._dynamo.utils import dynamo_timed
from torch.fx.experimental.proxy_tensor import py_sym_types
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from torch_neuronx import _C
from torch_neuronx.neuron_dynamo_backend import metrics
from torch_neuronx.neuron_dynamo_backend.decompositions import op_name

aten = torch.ops.aten


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
    refused: set[str] = set()
    while True:
        if not any(_unsupported(node, refused) for node in gm.graph.nodes):
            runner = _GraphRunner(gm, device, name)
            try:
                runner.specialised(runner.traced_key())
                return _boxed(runner)
            except _UnsupportedError as failure:
                refused.add(failure.node.name)
                continue
        if not any(_Support(refused).is_node_supported(None, n) for n in gm.graph.nodes):
            return _boxed(_as_list(gm))
        return _boxed(_as_list(_partitioned(gm, device, name, refused)))


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


def _device_of(gm):
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, torch.Tensor) and item.device.type == "neuron":
                return item.device
    return None


def _is_scalar_code(node) -> bool:
    """Integer arithmetic on symbolic sizes: done on the host when the graph is specialised."""
    value = node.meta.get("val")
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
    if _is_scalar_code(node):
        # Reading a tensor's value makes the graph depend on data.
        return node.target in (aten._local_scalar_dense.default, aten.item.default)
    if not isinstance(node.target, torch._ops.OpOverload):
        return True
    if node.target is aten.copy_.default:
        target = node.args[0]
        return target.op != "placeholder" or target.meta["val"].device.type != "neuron"
    if node.target._schema.is_mutable:
        return True
    values = node.meta.get("val")
    for value in values if isinstance(values, (tuple, list)) else (values,):
        if value is not None and not isinstance(value, torch.Tensor):
            return True
        if isinstance(value, torch.Tensor) and value.layout != torch.strided:
            return True
    return not _C._has_lowering(op_name(node.target))


class _Support(OperatorSupportBase):
    def __init__(self, refused):
        self.refused = refused

    def is_node_supported(self, submodules, node):
        return node.op == "call_function" and not _unsupported(node, self.refused)


def _partitioned(gm, device, name, refused):
    """Splits the graph around the nodes that cannot be lowered; those run as eager ops."""
    partitioner = CapabilityBasedPartitioner(
        gm, _Support(refused), allows_single_node_partition=True
    )
    partitions = partitioner.propose_partitions()
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
    return fused


class _GraphRunner:
    """Calls the compiled graph; compiles one specialisation per set of symbolic sizes."""

    def __init__(self, gm, device, name):
        self.gm, self.device, self.name = gm, device, name
        self.placeholders = gm.graph.find_nodes(op="placeholder")
        self.symbolic = [
            i
            for i, node in enumerate(self.placeholders)
            if not isinstance(node.meta.get("val"), torch.Tensor)
        ]
        self.dynamic = any(
            isinstance(node.meta.get("val"), py_sym_types)
            or (
                isinstance(node.meta.get("val"), torch.Tensor)
                and any(isinstance(s, py_sym_types) for s in node.meta["val"].shape)
            )
            for node in gm.graph.nodes
        )
        self.cache: dict[tuple, tuple] = {}

    def traced_key(self) -> tuple:
        """The key of the sizes that the graph was traced with."""
        if not self.dynamic:
            return ()
        values = [node.meta.get("val") for node in self.placeholders]
        return tuple(_hint(values[i]) for i in self.symbolic) + tuple(
            tuple(_hint(size) for size in value.shape)
            for value in values
            if isinstance(value, torch.Tensor)
        )

    def specialised(self, key: tuple):
        entry = self.cache.get(key)
        if entry is None:
            if len(self.cache) >= 256:
                self.cache.pop(next(iter(self.cache)))
            with dynamo_timed("neuron_lower_graph"):
                entry = _Lowering(self.gm, self.device, self.name, key, self.symbolic).build()
            self.cache[key] = entry
        return entry

    def __call__(self, *inputs):
        key = ()
        if self.dynamic:
            key = tuple(inputs[i] for i in self.symbolic) + tuple(
                tuple(x.shape) for x in inputs if isinstance(x, torch.Tensor)
            )
        compiled, finish = self.specialised(key)
        tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
        return finish(compiled(tensors), inputs)


def _hint(value):
    """A size as it was when the graph was traced."""
    if not isinstance(value, py_sym_types):
        return value
    return value.node.hint


class _Lowering:
    """One walk over the FX graph with all sizes known.

    ``key``: the values of the inputs numbered in ``symbolic``, then the shape of each tensor input;
    empty if the graph has no symbolic sizes.
    """

    def __init__(self, gm, device, name, key, symbolic):
        self.gm, self.device = gm, device
        self.numbers = dict(zip(symbolic, key, strict=False))
        self.shapes = iter(key[len(symbolic) :])
        self.graph = _C.Graph(name, device.index or 0)
        self.values: dict = {}  # FX node -> GraphValue, list of them, or a number
        self.bindings: dict = {}  # sympy symbol -> int
        self.positions: dict = {}  # placeholder or get_attr node -> input number of the program
        self.constants: list[torch.Tensor] = []
        self.mutations: list = []  # (placeholder, value)

    # -- sizes ---------------------------------------------------------------------------------

    def bind(self, symbol, value) -> None:
        if isinstance(symbol, py_sym_types) and symbol.node.expr.is_Symbol:
            self.bindings[symbol.node.expr] = value

    def concrete(self, value):
        if isinstance(value, (list, tuple)):
            return [self.concrete(item) for item in value]
        if not isinstance(value, py_sym_types):
            return value
        expression = value.node.expr.subs(self.bindings)
        if isinstance(value, torch.SymBool):
            return bool(expression)
        return float(expression) if isinstance(value, torch.SymFloat) else int(expression)

    # -- the walk ------------------------------------------------------------------------------

    def build(self):
        placeholders = self.gm.graph.find_nodes(op="placeholder")
        for number, node in enumerate(placeholders):
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                for symbol, size in zip(value.shape, next(self.shapes, value.shape), strict=True):
                    self.bind(symbol, size)
            else:
                self.bind(value, self.numbers.get(number, value))
        written = {
            node.args[0]
            for node in self.gm.graph.nodes
            if node.op == "call_function" and node.target is aten.copy_.default
        }
        for number, node in enumerate(placeholders):
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                self.add_input(node, value, may_be_scalar=node not in written)
            else:
                self.values[node] = self.numbers.get(number, value)
        for node in self.gm.graph.nodes:
            if node.op == "get_attr":
                constant = self.attribute(node.target)
                self.add_input(node, constant, may_be_scalar=True)
                self.constants.append(constant)
        for node in self.gm.graph.nodes:
            if node.op == "call_function":
                self.call(node)
        plan = self.outputs()
        with dynamo_timed("neuron_compile_graph"):
            start = time.perf_counter()
            compiled = self.graph.compile()
            metrics.count_compile(time.perf_counter() - start)
        return (
            lambda tensors: compiled(tensors + self.constants),
            _Finish(plan, [i for i, n in enumerate(placeholders) if n in self.positions]),
        )

    def attribute(self, target):
        value = self.gm
        for part in target.split("."):
            value = getattr(value, part)
        return value

    def add_input(self, node, tensor, may_be_scalar) -> None:
        host_scalar = may_be_scalar and tensor.device.type == "cpu" and tensor.dim() == 0
        self.positions[node] = len(self.positions)
        self.values[node] = self.graph.input(
            tensor.dtype,
            self.concrete(tuple(tensor.shape)),
            self.concrete(tuple(tensor.stride())),
            host_scalar,
        )

    def argument(self, value):
        if isinstance(value, torch.fx.Node):
            return self.values[value]
        if isinstance(value, (list, tuple)):
            return [self.argument(item) for item in value]
        return self.concrete(value)

    def call(self, node) -> None:
        if node.target is operator.getitem:
            self.values[node] = self.values[node.args[0]][node.args[1]]
            return
        if _is_scalar_code(node):
            self.values[node] = self.concrete(node.meta["val"])
            return
        if node.target is aten.copy_.default:
            self.mutations.append((node.args[0], self.values[node.args[1]]))
            self.values[node] = self.values[node.args[1]]
            return
        arguments = []
        for i, declared in enumerate(node.target._schema.arguments):
            if i < len(node.args) and not declared.kwarg_only:
                arguments.append(self.argument(node.args[i]))
            elif declared.name in node.kwargs:
                arguments.append(self.argument(node.kwargs[declared.name]))
            elif declared.has_default_value():
                arguments.append(declared.default_value)
            else:
                arguments.append(None)
        metas = node.meta["val"]
        many = isinstance(metas, (tuple, list))
        results = [
            None if m is None else (m.dtype, self.concrete(tuple(m.shape)))
            for m in (metas if many else [metas])
        ]
        try:
            values = self.graph.call(op_name(node.target), arguments, results)
        except NotImplementedError as failure:
            raise _UnsupportedError(node, failure) from failure
        self.values[node] = values if many else values[0]

    def outputs(self):
        """Per FX output: how to make it from what the program returns."""
        plan = []
        returned = 0
        sources = self.gm.graph.output_node().args[0]
        sources = sources if isinstance(sources, (tuple, list)) else [sources]
        written = {node for node, _ in self.mutations}
        for node in sources:
            value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
            if not isinstance(node, torch.fx.Node):
                plan.append(("constant", node, None))
            elif node in self.positions and node.op == "placeholder":
                plan.append(("input", self.positions[node], None))
            elif (
                node.op == "call_function"
                and node.target is aten.copy_.default
                and node.args[0] in written
            ):
                plan.append(("input", self.positions[node.args[0]], None))
            elif not isinstance(value, torch.Tensor):
                plan.append(("constant", self.values[node], None))
            else:
                self.graph.output(
                    self.values[node],
                    value.dtype,
                    self.concrete(tuple(value.shape)),
                    self.concrete(tuple(value.stride())),
                )
                plan.append(("result", returned, value.device.type == "cpu"))
                returned += 1
        for node, value in self.mutations:
            meta = node.meta["val"]
            self.graph.output(
                value,
                meta.dtype,
                self.concrete(tuple(meta.shape)),
                self.concrete(tuple(meta.stride())),
                self.positions[node],
            )
        return plan


class _Finish:
    """Arranges what the program returned as the FX graph's outputs."""

    def __init__(self, plan, tensor_inputs):
        self.plan, self.tensor_inputs = plan, tensor_inputs
        self.plain = all(kind == "result" and not cpu for kind, _, cpu in plan)

    def __call__(self, returned, inputs):
        if self.plain:
            return returned
        out = []
        for kind, what, to_cpu in self.plan:
            if kind == "constant":
                out.append(what)
            elif kind == "input":
                out.append(inputs[self.tensor_inputs[what]])
            else:
                out.append(returned[what].cpu() if to_cpu else returned[what])
        return out
