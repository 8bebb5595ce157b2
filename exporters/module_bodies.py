"""The nodes between the marks of a call, made independent of everything around them.

Three things around them become their own: small whole numbers (shapes, axes) are constants of the body; sizes, which
torch reads from the inputs of the whole graph, are read from the tensors that the call takes; and each use of
a weight is an input. What is left, such as a tensor that a module reads from its parent, is an input, too.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir
from onnx_ir.convenience import get_const_tensor

from osa_runtime.exporters.module_calls import MARKS
from osa_runtime.exporters.onnx_names import SCOPES, relative

LARGEST_CONSTANT = 1024  # bytes
SAME_NUMBER = ("Squeeze", "Unsqueeze", "Reshape", "Identity")
ARITHMETIC = {"Add": operator.add, "Sub": operator.sub, "Mul": operator.mul}


@dataclass
class Marks:
    """The marks of one call, by the position of the tensor among those that it takes or returns."""

    enter: dict[int, ir.Node] = field(default_factory=dict)
    exit: dict[int, ir.Node] = field(default_factory=dict)


class ModuleBody:
    """``paths`` are those of the module, which has several if it is shared; ``entered`` the positions of what is read.

    ``captured`` maps values from elsewhere to inputs of the body; ``weights`` are pairs of an input and a weight, one
    for each use.
    """

    def __init__(self, graph: ir.Graph, marks: Marks, paths: Sequence[str]) -> None:
        self._graph, self._marks, self._paths = graph, marks, paths
        self._own = self._between()
        self._made = {value for node in self._own for value in node.outputs}
        self._inside = self._made | {mark.outputs[0] for mark in marks.enter.values()}
        self._sizes = _sizes([mark.outputs[0] for mark in marks.enter.values()])
        self._copies: dict[ir.Value, ir.Value] = {}
        self._can: dict[ir.Value, bool] = {}
        self.nodes: list[ir.Node] = []
        self.captured: dict[ir.Value, ir.Value] = {}
        self.weights: list[tuple[ir.Value, ir.Value]] = []
        for node in self._own:
            self._adopt(node)
        self.outputs = [self._result(mark) for mark in marks.exit.values()]
        self.outputs += self._leaks()
        used = {value for node in self.nodes for value in _reads(node, graph)}
        self.entered = [index for index, mark in marks.enter.items() if mark.outputs[0] in used]

    def view(self) -> ir.GraphView:
        inputs = [self._marks.enter[index].outputs[0] for index in self.entered]
        inputs += [*self.captured.values(), *(inner for inner, _ in self.weights)]
        return ir.GraphView(inputs, self.outputs, nodes=self.nodes)

    def replace(self, function: ir.Function) -> None:
        """Put a node of the function in place of the body and its marks."""
        enter, leave = self._marks.enter, list(self._marks.exit.values())
        given = [enter[index].inputs[0] for index in self.entered]
        given += [*self.captured, *(outer for _, outer in self.weights)]
        call = ir.Node(function.domain, function.name, given, num_outputs=len(self.outputs))
        call.metadata_props[SCOPES] = _scopes(leave[0])
        self._graph.insert_before(leave[0], call)
        for own in (one for node in [*self.nodes, *leave] for one in with_inner(node)):
            for index in range(len(own.inputs)):
                own.replace_input_with(index, None)
        for old, new in zip(self.outputs, call.outputs, strict=True):
            new.type, new.shape = old.type, old.shape
            if old in self._made:  # it may be read outside without having been returned
                ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        for mark, new in zip(leave, call.outputs, strict=False):
            ir.convenience.replace_all_uses_with(mark.outputs[0], new, replace_graph_outputs=True)
        self._graph.remove([*leave, *self._own])
        for mark in enter.values():
            drop_mark(mark)

    def _between(self) -> list[ir.Node]:
        """The nodes that read what the call takes, directly or not, and that its results need."""
        behind = {mark.outputs[0] for mark in self._marks.enter.values()}
        readers = []
        for node in self._graph:
            if node.domain != MARKS and any(value in behind for value in _reads(node, self._graph)):
                behind.update(node.outputs)
                readers.append(node)
        needed = {mark.inputs[0] for mark in self._marks.exit.values()}
        found = []
        for node in reversed(readers):
            if any(value in needed for value in node.outputs):
                needed.update(_reads(node, self._graph))
                found.append(node)
        return found[::-1]

    def _adopt(self, node: ir.Node) -> None:
        for one in with_inner(node):
            for index, value in enumerate(one.inputs):
                if value is not None and value.graph is self._graph and value not in self._inside:
                    one.replace_input_with(index, self._own_value(value, node))
        self.nodes.append(node)

    def _own_value(self, value: ir.Value, reader: ir.Node) -> ir.Value:
        """The value that the body reads in place of one from outside: a copy, a size of its own, or an input."""
        if value in self._copies:
            return self._copies[value]
        tensor, size = get_const_tensor(value), self._size(value)
        if tensor is not None and _is_structural(tensor):
            self._copies[value] = self._add(constant(tensor), reader)
        elif value.is_initializer():
            self.weights.append((ir.Value(name=self._hint(value), type=value.type), value))
            return self.weights[-1][0]
        elif self._can_copy(value):
            node = value.producer()
            assert node is not None
            inputs = [None if one is None else self._own_value(one, reader) for one in node.inputs]
            copy = ir.Node("", node.op_type, inputs, node.attributes.values(), num_outputs=len(node.outputs))
            self._add(copy, reader)
            self._copies |= dict(zip(node.outputs, copy.outputs, strict=True))
        elif size is not None:
            axis = [ir.AttrInt64("start", size[1]), ir.AttrInt64("end", size[1] + 1)]
            found = self._add(ir.Node("", "Shape", [size[0]], axis), reader)
            scalar = value.shape is None or len(value.shape) == 0
            self._copies[value] = self._add(ir.Node("", "Squeeze", [found]), reader) if scalar else found
        else:
            return self.captured.setdefault(value, ir.Value(type=value.type))
        return self._copies[value]

    def _add(self, node: ir.Node, reader: ir.Node) -> ir.Value:
        node.metadata_props[SCOPES] = _scopes(reader)
        self.nodes.append(node)
        return node.outputs[0]

    def _hint(self, weight: ir.Value) -> str | None:
        """The name of a weight that belongs to the module, relative to it."""
        name = weight.name or ""
        return next((relative(name, path) for path in self._paths if name.startswith(f"{path}.")), None)

    def _can_copy(self, value: ir.Value) -> bool:
        """True for the result of a plain operator on weights and on sizes that tensors of the call have."""
        if value not in self._can:
            node = value.producer()
            plain = node is not None and not node.domain and not any(inner_graphs(node))
            inputs = [one for one in node.inputs if one is not None] if node is not None and plain else []
            self._can[value] = bool(inputs) and all(
                one.is_initializer() or self._size(one) is not None or self._can_copy(one) for one in inputs
            )
        return self._can[value]

    def _size(self, value: ir.Value) -> tuple[ir.Value, int] | None:
        """The tensor of the call, and its axis, that has this size."""
        extent = _extent(value) if value.dtype == ir.DataType.INT64 else None
        return self._sizes.get(_normal(extent)) if isinstance(extent, ir.SymbolicDim) else None

    def _result(self, mark: ir.Node) -> ir.Value:
        """The value that a mark returns, made by a node that nothing else is returned of."""
        value = mark.inputs[0]
        assert value is not None
        returned = [other.inputs[0] for other in self._marks.exit.values()]
        if value in self._made and returned.count(value) == 1:
            return value
        source = value if value in self._inside else self._own_value(value, mark)
        same = self._add(ir.Node("", "Identity", [source]), mark)
        same.type, same.shape = value.type, value.shape
        return same

    def _leaks(self) -> list[ir.Value]:
        """Values that are read outside without being returned, as a module may keep them for its parent."""
        inside = {*self._marks.exit.values(), *(one for node in self.nodes for one in with_inner(node))}
        values = (value for node in self._own for value in node.outputs if value not in self.outputs)
        return [one for one in values if one.is_graph_output() or any(use.node not in inside for use in one.uses())]


def drop_mark(node: ir.Node) -> None:
    source, graph = node.inputs[0], node.graph
    assert source is not None
    assert graph is not None
    ir.convenience.replace_all_uses_with(node.outputs[0], source, replace_graph_outputs=True)
    graph.remove(node, safe=True)


def constant(tensor: ir.TensorProtocol) -> ir.Node:
    """A node with the content alone: a name would make equal bodies differ."""
    return ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.Tensor(tensor.numpy(), dtype=tensor.dtype))])


def with_inner(node: ir.Node) -> Iterator[ir.Node]:
    """The node, and those of its branches and loops."""
    yield node
    for graph in inner_graphs(node):
        yield from graph.all_nodes()


def inner_graphs(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def _inner_reads(node: ir.Node, graph: ir.Graph) -> Iterator[ir.Value]:
    """The values of the graph that branches and loops of a node read."""
    for body in inner_graphs(node):
        values = (value for inner in body.all_nodes() for value in inner.inputs)
        yield from (value for value in values if value is not None and value.graph is graph)


def _reads(node: ir.Node, graph: ir.Graph) -> Iterator[ir.Value]:
    yield from (value for value in node.inputs if value is not None)
    yield from _inner_reads(node, graph)


def _scopes(node: ir.Node) -> str:
    return node.metadata_props.get(SCOPES, "[]")


def _is_structural(tensor: ir.TensorProtocol) -> bool:
    """True for whole numbers and flags, which shapes depend on; what has a fraction is a weight until all agree."""
    return not tensor.dtype.is_floating_point() and tensor.nbytes <= LARGEST_CONSTANT


def _sizes(tensors: list[ir.Value]) -> dict[str, tuple[ir.Value, int]]:
    """The first tensor and axis with each dynamic size. torch names equal sizes alike, and only those."""
    found: dict[str, tuple[ir.Value, int]] = {}
    for tensor in tensors:
        for axis, dim in enumerate(tensor.shape or ()):
            if isinstance(dim, ir.SymbolicDim) and dim.value is not None:
                found.setdefault(_normal(dim), (tensor, axis))
    return found


def _normal(dim: ir.SymbolicDim) -> str:
    """One spelling for equal expressions."""
    return str((dim + 0).value)


def _extent(value: ir.Value) -> ir.SymbolicDim | int | None:
    """A whole number in terms of sizes: ``tokens + 1`` for one that is computed so from the graph's inputs."""
    tensor, node = get_const_tensor(value), value.producer()
    if tensor is not None:
        return int(tensor.numpy().item()) if tensor.size == 1 and tensor.dtype.is_integer() else None
    if node is None or node.domain or node.inputs[0] is None:
        return None
    if node.op_type == "Shape":
        shape = node.inputs[0].shape
        start, end = (node.attributes[name].as_int() if name in node.attributes else None for name in ("start", "end"))
        dims = [] if shape is None else list(shape)[start:end]
        return dims[0] if len(dims) == 1 and getattr(dims[0], "value", 0) is not None else None
    if node.op_type in SAME_NUMBER:
        return _extent(node.inputs[0])
    if node.op_type not in ARITHMETIC or node.inputs[1] is None:
        return None
    left, right = _extent(node.inputs[0]), _extent(node.inputs[1])
    return None if left is None or right is None else ARITHMETIC[node.op_type](left, right)
