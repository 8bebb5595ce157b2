"""Parts of an ONNX graph as models of their own: nodes between some values and others, or one node that is a layer."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from osa_runtime.onnx_files import between, makers, reads, renamed
from osa_runtime.onnx_layers import DOMAIN
from osa_runtime.verification.inside.model_parts import Array
from osa_runtime.verification.inside.whole_layer import WholeLayer

LARGEST_KEPT = 1024  # bytes; shape inference reads small constants, and large ones only cost memory


class GraphIndex:
    """The producer and the type of each value of the main graph."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.nodes = list(model.graph.node)
        self.weights = {tensor.name: tensor for tensor in model.graph.initializer}
        self.weight_count = sum(math.prod(tensor.dims) for tensor in model.graph.initializer)
        self.inputs = [value.name for value in model.graph.input if value.name not in self.weights]
        self.maker = makers(self.nodes)
        self.types = _value_types(model)
        self.constants = self._constants()

    def between(self, known: Collection[str], wanted: Sequence[str]) -> set[int]:
        """The nodes that are needed for ``wanted`` when ``known`` is given."""
        return between(self.nodes, self.maker, known, wanted)

    def _constants(self) -> set[str]:
        """The weights, and the values computed from nothing else."""
        found = set(self.weights)
        for node in self.nodes:
            if all(name in found for name in reads(node)):
                found.update(node.output)
        return found

    def reach(self) -> tuple[list[int], list[int]]:
        """The nodes before and after each node, as sets of bits."""
        before, behind = [0] * len(self.nodes), [0] * len(self.nodes)
        sources = [{self.maker[name] for name in reads(node) if name in self.maker} for node in self.nodes]
        for index, found in enumerate(sources):
            for source in found:
                before[index] |= before[source] | 1 << source
        for index in range(len(self.nodes) - 1, -1, -1):
            for source in sources[index]:
                behind[source] |= behind[index] | 1 << index
        return before, behind

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
        return self._model(graph)

    def glue(self, cuts: Mapping[str, bool], wanted: Sequence[str]) -> onnx.ModelProto:
        """A model from the inputs of the graph and the values at ``cuts`` to ``wanted`` ones.

        Readers of a cut read the input ``given/NAME`` in its place. A wanted value may be a cut: it is computed,
        too, unless the cut is True: then a unit computes it. The outputs are in the order of ``wanted``.
        """
        made = [name for name in wanted if name in self.maker and not cuts.get(name)]
        kept = {self.maker[name] for name in made}
        kept |= self.between(cuts, [name for i in kept for name in reads(self.nodes[i])])
        given = {name: f"given/{name}" for name in cuts}
        nodes = [renamed(self.nodes[index], given) for index in sorted(kept)]
        passed_on = {name: f"same/{name}" for name in wanted if name not in made}
        nodes += [helper.make_node("Identity", [given.get(old, old)], [new]) for old, new in passed_on.items()]
        read = {name for node in nodes for name in reads(node)}
        inputs = [self._value(name, new) for name, new in given.items() if new in read]
        inputs += [self.value_info(name) for name in self.inputs if name in read]
        outputs = [self._value(name, passed_on.get(name, name)) for name in wanted]
        weights = [tensor for name, tensor in self.weights.items() if name in read]
        return self._model(helper.make_graph(nodes, "glue", inputs, outputs, weights))

    def _value(self, old: str, new: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(new, self.types.get(old, TensorProto.FLOAT), None)

    def _model(self, graph: onnx.GraphProto) -> onnx.ModelProto:
        model = onnx.ModelProto(ir_version=self.model.ir_version, producer_name="osa-runtime", graph=graph)
        model.opset_import.extend(self.model.opset_import)
        # Reading the functions takes ten times as long as a part without any call of them.
        if any(node.domain or any(value.HasField("g") for value in node.attribute) for node in graph.node):
            model.functions.extend(self.model.functions)
        return model

    def value_info(self, name: str) -> onnx.ValueInfoProto:
        """The type without the shape: sizes guessed by inference would only cause conflicts."""
        for value in self.model.graph.input:
            if value.name == name:
                return value
        return helper.make_tensor_value_info(name, self.types.get(name, TensorProto.FLOAT), None)


def _value_types(model: onnx.ModelProto) -> dict[str, int]:
    light = copy.deepcopy(model)
    for tensor in light.graph.initializer:
        if len(tensor.raw_data) > LARGEST_KEPT:
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="elsewhere")
    inferred = onnx.shape_inference.infer_shapes(light)
    values = [*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output]
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    return types | {tensor.name: tensor.data_type for tensor in model.graph.initializer}


NAMES = ("x", "weight", "out", "scale", "mask")


class LayerNode(WholeLayer):
    """A layer that is one node, as a model whose inputs are those of the node."""

    def __init__(self, node: onnx.NodeProto, model: onnx.ModelProto, element: int, start: Callable[..., Any]) -> None:
        names = NAMES[: len(node.input)]
        types = [element] * 4 + [onnx.TensorProto.BOOL]
        ranks = (3, 2, 2, 1, 2)
        inputs = [
            helper.make_tensor_value_info(name, kind, [None] * rank)
            for name, kind, rank in zip(names, types, ranks, strict=False)
        ]
        outputs = [helper.make_tensor_value_info("y", element, None)]
        outputs.append(helper.make_tensor_value_info("squarings", onnx.TensorProto.INT64, []))
        outputs.append(helper.make_tensor_value_info("packed", onnx.TensorProto.FLOAT, None))
        alone = helper.make_node(node.op_type, names, ["y", "squarings"], "layer", domain=DOMAIN)
        casts = [helper.make_node("Cast", [name], [f"{name}32"], to=onnx.TensorProto.FLOAT) for name in names[:2]]
        rounded = helper.make_node("MatMul", [f"{name}32" for name in names[:2]], ["packed"])
        graph = helper.make_graph([alone, *casts, rounded], "layer", inputs, outputs)
        imports = list(model.opset_import)
        self._session = start(
            helper.make_model(
                graph, functions=list(model.functions), opset_imports=imports, ir_version=model.ir_version
            )
        )
        self._type = helper.tensor_dtype_to_np_dtype(element)

    def run(
        self, x: Array, weight: Array, out: Array, scale: Array, mask: Array | None
    ) -> tuple[Array, int | None, Array]:
        floats = (np.ascontiguousarray(value, self._type) for value in (x, weight, out, scale))
        feeds = dict(zip(NAMES, floats, strict=False))
        if mask is not None:
            feeds["mask"] = mask
        y, squarings, packed = self._session.run(None, feeds)
        return y, int(squarings), packed
