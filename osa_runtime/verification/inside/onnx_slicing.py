"""Cutting a part out of an ONNX graph: the nodes between some values and others, as a model of its own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import onnx
from onnx import TensorProto, helper

LARGEST_KEPT = 1024  # bytes; shape inference reads small constants, and large ones only cost memory


class GraphIndex:
    """Who makes each value of the main graph, and of which type it is."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.nodes = list(model.graph.node)
        self.weights = {tensor.name: tensor for tensor in model.graph.initializer}
        self.inputs = [value.name for value in model.graph.input if value.name not in self.weights]
        self.maker = {name: index for index, node in enumerate(self.nodes) for name in node.output if name}
        self.types = _value_types(model)

    def between(self, known: Collection[str], wanted: Sequence[str]) -> set[int]:
        """The nodes that are needed for ``wanted`` when ``known`` is given."""
        found: set[int] = set()
        waiting = [name for name in wanted if name not in known]
        while waiting:
            index = self.maker.get(waiting.pop())
            if index is not None and index not in found:
                found.add(index)
                waiting += [name for name in reads(self.nodes[index]) if name not in known]
        return found

    def slice(self, known: Sequence[str], wanted: Sequence[str]) -> onnx.ModelProto:
        """A model from ``known`` values (and those inputs of the graph that it still needs) to ``wanted`` ones."""
        chosen = sorted(self.between(set(known), wanted))
        nodes = [self.nodes[index] for index in chosen]
        read = {name for node in nodes for name in reads(node)} | set(wanted)
        inputs = [*known, *(name for name in self.inputs if name in read and name not in known)]
        graph = helper.make_graph(
            nodes,
            "slice",
            [self.value_info(name) for name in inputs],
            [self.value_info(name) for name in wanted],
            [tensor for name, tensor in self.weights.items() if name in read and name not in known],
        )
        sliced = onnx.ModelProto(ir_version=self.model.ir_version, producer_name="osa-runtime", graph=graph)
        sliced.opset_import.extend(self.model.opset_import)
        sliced.functions.extend(self.model.functions)
        return sliced

    def value_info(self, name: str) -> onnx.ValueInfoProto:
        """The type alone: sizes that inference guessed would only be in the way."""
        for value in self.model.graph.input:
            if value.name == name:
                return value
        return helper.make_tensor_value_info(name, self.types.get(name, TensorProto.FLOAT), None)


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """What a node reads, also inside its branches and loops; names that a body makes itself do no harm."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
            made = {name for inner in graph.node for name in inner.output} | {value.name for value in graph.input}
            for inner in graph.node:
                yield from (name for name in reads(inner) if name not in made)
            yield from (value.name for value in graph.output if value.name not in made)


def _value_types(model: onnx.ModelProto) -> dict[str, int]:
    light = onnx.ModelProto()
    light.CopyFrom(model)
    for tensor in light.graph.initializer:
        if len(tensor.raw_data) > LARGEST_KEPT:
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="elsewhere")
    inferred = onnx.shape_inference.infer_shapes(light)
    values = [*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output]
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    return types | {tensor.name: tensor.data_type for tensor in model.graph.initializer}
