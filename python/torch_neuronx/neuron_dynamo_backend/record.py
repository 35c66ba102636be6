"""Hands an FX graph over to a C++ graph: nodes, sizes as expressions, and how outputs are made."""

import operator

import torch
from torch.fx.experimental.proxy_tensor import py_sym_types
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._sympy.interp import sympy_interp

from torch_neuronx.neuron_dynamo_backend.decompositions import op_name

aten = torch.ops.aten


def _convert(graph, results, value, dtype):
    return graph.call("aten::_to_copy", [value, dtype, None, None, None, False, None], results)


def _multiply_and_add(graph, results, a, b, c):
    (product,) = graph.call("aten::mul.Tensor", [a, b], results)
    return graph.call("aten::add.Tensor", [product, c, 1], results)


# Primitives that Dynamo and its passes put into graphs. By name: torch makes some of them late.
_primitives = {
    "prims::convert_element_type": _convert,
    "prims::fma": _multiply_and_add,
}


def primitive(target):
    """What records a primitive of torch's, or None."""
    return _primitives.get(op_name(target)) if isinstance(target, torch._ops.OpOverload) else None


# Results of these share their argument's memory and stay within what it covers.
_views = {
    aten.alias.default,
    aten.detach.default,
    aten.expand.default,
    aten.permute.default,
    aten.select.int,
    aten.slice.Tensor,
    aten.split.Tensor,
    aten.split_with_sizes.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.t.default,
    aten.transpose.int,
    aten.unbind.int,
    aten.unsqueeze.default,
    aten.view.default,
    aten._unsafe_view.default,
    operator.getitem,
}


class _SizeOps:
    """The handler of torch's sympy interpreter: every operation becomes a C++ expression."""

    def __init__(self, graph):
        self.graph = graph

    def constant(self, value, dtype):
        convert = {torch.bool: bool, torch.int64: int}.get(dtype, float)
        return self.graph.number(convert(value))

    def to_dtype(self, value, dtype):
        return self.graph.apply("to_float", [value])

    def __getattr__(self, name):
        if name == "sym_sum":
            raise AttributeError(name)
        return lambda *operands: self.graph.apply(
            name, [x for x in operands if not isinstance(x, torch.dtype)]
        )


class GraphRecorder:
    """One walk over the FX graph. ``node``: the one being recorded; ``nodes``: those recorded."""

    def __init__(self, gm, graph):
        self.gm, self.graph = gm, graph
        self.operations = _SizeOps(graph)
        self.values: dict = {}  # FX node -> GraphValue, lists of them, or a number
        self.symbols: dict = {}  # sympy symbol -> GraphSize
        self.expressions: dict = {}  # sympy expression -> GraphSize
        self.symbol_hints: list = []
        self.inputs: dict = {}  # placeholder -> number of the input
        self.nodes: list = []
        self.node = None

    # -- sizes ---------------------------------------------------------------------------------

    def symbol(self, symbol, value):
        """The expression of a sympy symbol; ``value``: a number of torch that contains it."""
        known = self.symbols.get(symbol)
        if known is None:
            known = self.symbols[symbol] = self.graph.symbol(not symbol.is_integer)
            self.symbol_hints.append(_hint(symbol, value))
        return known

    def size(self, value):
        """A number, or what the C++ graph knows a symbolic one by."""
        if not isinstance(value, py_sym_types):
            return value
        expression = value.node.expr
        known = self.expressions.get(expression)
        if known is None:
            symbols = sorted(expression.free_symbols, key=str)
            environment = {symbol: self.symbol(symbol, value) for symbol in symbols}
            try:
                known = sympy_interp(self.operations, environment, expression)
            except (NotImplementedError, KeyError):
                known = self.graph.function(
                    _python_function(expression, symbols, type(value)),
                    [environment[symbol] for symbol in symbols],
                )
            self.expressions[expression] = known
        return known

    def sizes(self, values):
        return [self.size(value) for value in values]

    def hints(self):
        """Values of the symbols when the graph was traced; None if some were not known."""
        return None if None in self.symbol_hints else self.symbol_hints

    def bind(self, value, number, part="number", axis=0) -> None:
        if isinstance(value, py_sym_types) and value.node.expr.is_Symbol:
            self.graph.bind(self.symbol(value.node.expr, value), number, part, axis)

    # -- the walk ------------------------------------------------------------------------------

    def record(self) -> None:
        nodes = list(self.gm.graph.nodes)
        self.written = {
            node.args[0]
            for node in nodes
            if node.op == "call_function" and node.target is aten.copy_.default
        }
        self.mutations: list = []  # (placeholder, value)
        for number, node in enumerate(n for n in nodes if n.op == "placeholder"):
            self.inputs[node] = number
            self.placeholder(node, number)
        for node in nodes:
            if node.op == "get_attr":
                self.values[node] = self.graph.constant(self.attribute(node.target))
        for node in nodes:
            if node.op == "call_function":
                self.node = node
                self.call(node)
        self.node = None
        self.outputs()

    def placeholder(self, node, number) -> None:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            self.graph.number_input()
            self.bind(value, number)
            self.values[node] = self.size(value)
            return
        for part, list_ in (("size", value.shape), ("stride", value.stride())):
            for axis, size in enumerate(list_):
                self.bind(size, number, part, axis)
        host_scalar = node not in self.written and value.device.type == "cpu" and value.dim() == 0
        self.values[node] = self.graph.input(
            value.dtype, self.sizes(value.shape), self.sizes(value.stride()), host_scalar
        )

    def attribute(self, target):
        value = self.gm
        for part in target.split("."):
            value = getattr(value, part)
        return value

    def argument(self, value):
        if isinstance(value, torch.fx.Node):
            return self.values[value]
        if isinstance(value, (list, tuple)):
            return [self.argument(item) for item in value]
        return self.size(value)

    def call(self, node) -> None:
        value = node.meta.get("val")
        if isinstance(value, (*py_sym_types, int, float, bool)):
            # Arithmetic on sizes.
            self.values[node] = self.size(value)
            return
        if node.target is operator.getitem:
            self.values[node] = self.values[node.args[0]][node.args[1]]
            return
        if node.target is aten.copy_.default:
            self.mutations.append((node.args[0], self.values[node.args[1]]))
            self.values[node] = self.values[node.args[1]]
            return
        results: list = []
        places = self.results(value, results)
        if (record := primitive(node.target)) is not None:
            made = record(self.graph, results, *[self.argument(argument) for argument in node.args])
            # One entry for each node that the graph counts.
            self.nodes.extend([node] * (self.graph.node_count - len(self.nodes)))
            self.values[node] = made[0]
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
        made = self.graph.call(op_name(node.target), arguments, results)
        self.nodes.append(node)
        self.values[node] = _placed(places, made)

    def results(self, value, results):
        """Appends what each result is; the same structure with their numbers comes back."""
        if isinstance(value, (tuple, list)):
            return [self.results(item, results) for item in value]
        if isinstance(value, torch.Tensor):
            results.append((value.dtype, self.sizes(value.shape)))
        else:  # Undefined, or a number among the results, which the graph's sizes tell.
            results.append(None)
        return len(results) - 1

    # -- outputs -------------------------------------------------------------------------------

    def outputs(self) -> None:
        sources = self.gm.graph.output_node().args[0]
        sources = sources if isinstance(sources, (tuple, list)) else [sources]
        fresh: dict = {}  # node whose memory others may share -> number of the output
        for number, node in enumerate(sources):
            if node is None:
                self.graph.output_none()
                continue
            if not isinstance(node, torch.fx.Node):
                self.graph.output_number(node)
                continue
            value = node.meta.get("val")
            if node in self.inputs:
                self.graph.output_input(self.inputs[node])
            elif node.target is aten.copy_.default and node.args[0] in self.inputs:
                self.graph.output_input(self.inputs[node.args[0]])
            elif not isinstance(value, torch.Tensor):
                if self.values[node] is None:
                    self.graph.output_none()
                else:
                    self.graph.output_number(self.values[node])
            else:
                self.tensor_output(node, value, number, fresh)
        for node, value in self.mutations:
            meta = node.meta["val"]
            self.graph.output(
                value,
                meta.dtype,
                self.sizes(meta.shape),
                self.sizes(meta.stride()),
                self.inputs[node],
            )

    def tensor_output(self, node, value, number, fresh) -> None:
        sizes, strides = self.sizes(value.shape), self.sizes(value.stride())
        on_device = value.device.type == "neuron"
        root = _memory_of(node)
        if on_device and root in self.inputs and root not in self.written:
            base = root.meta["val"]
            if base.device.type == "neuron":
                offset = self.size(value.storage_offset() - base.storage_offset())
                self.graph.output_view(True, self.inputs[root], sizes, strides, offset)
                return
        if on_device and root in fresh:
            offset = self.size(value.storage_offset())
            self.graph.output_view(False, fresh[root], sizes, strides, offset)
            return
        self.graph.output(
            self.values[node], value.dtype, sizes, strides, to_host=value.device.type == "cpu"
        )
        if on_device and _covers(value, root.meta.get("val")):
            fresh[root] = number


def _memory_of(node):
    """The node whose memory ``node`` shows: itself, or what it is a view of."""
    value = node.meta.get("val")
    root = at = node
    if value.is_conj() or value.is_neg():
        return root
    while at.op == "call_function" and at.target in _views:
        at = at.args[0]
        shared = at.meta.get("val")  # A list for the pieces of a split.
        if isinstance(shared, torch.Tensor):
            if not _share_memory(value, shared):
                break
            root = at
    return root


def _share_memory(a, b) -> bool:
    return (
        a.dtype == b.dtype
        and not b.is_conj()
        and not b.is_neg()
        and a.untyped_storage()._cdata == b.untyped_storage()._cdata
    )


def _covers(value, root) -> bool:
    """``value`` is contiguous, starts at its memory's first element and fills all that ``root``,
    what it is a view of, has."""
    if not isinstance(root, torch.Tensor):
        return False
    expected = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if not statically_known_true(stride == expected):
            return False
        expected = expected * size
    extent = 1
    for size, stride in zip(root.shape, root.stride(), strict=True):
        extent = extent + (size - 1) * stride
    return (
        statically_known_true(value.storage_offset() == 0)
        and statically_known_true(root.storage_offset() == 0)
        and statically_known_true(extent == expected)
    )


def _placed(places, made):
    if isinstance(places, list):
        return [_placed(item, made) for item in places]
    return made[places]


def _hint(symbol, value):
    """The symbol's value when the graph was traced, or None."""
    hint = value.node.hint if value.node.expr == symbol else None
    if hint is None:
        environment = value.node.shape_env
        known = getattr(environment, "backed_var_to_val", None) or environment.var_to_val
        hint = known.get(symbol)
    if hint is None:
        return None
    return int(hint) if symbol.is_integer else float(hint)


def _python_function(expression, symbols, kind):
    """Evaluates what C++ has no operation for."""
    convert = {torch.SymBool: bool, torch.SymFloat: float}.get(kind, int)

    def evaluate(*values):
        return convert(expression.subs(dict(zip(symbols, values, strict=True))))

    return evaluate
