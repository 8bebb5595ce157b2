"""The weights to quantise, and 8 bits in front of float32 arithmetic, by Cast and Mul.

They are those of products and of embeddings, outside orthogonal attention. A runtime computes Cast and Mul once, when
it loads the model, as they depend on nothing else. A DequantizeLinear would be computed in every run, and ONNX Runtime
may even fuse it into a product that rounds the activations to 8 bits, too.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from osa_runtime.errors import InputError
from osa_runtime.manifest import AttentionCall
from osa_runtime.onnx_files import between, makers, reads

Inserted = tuple[list[onnx.NodeProto], list[onnx.TensorProto]]


def quantize_products(model: onnx.ModelProto, names: Collection[str]) -> None:
    """Quantise the weights of products, with a scale for each output."""
    _replace(model, names, 1, _product)


def quantize_tables(model: onnx.ModelProto, names: Collection[str]) -> None:
    """Quantise tables: rows are looked up in 8 bits, and only these are widened, each with its own scale."""
    _replace(model, names, 0, _lookup)


def _replace(
    model: onnx.ModelProto,
    names: Collection[str],
    position: int,
    rewrite: Callable[[onnx.NodeProto, onnx.TensorProto], Inserted],
) -> None:
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    nodes = []
    for node in model.graph.node:
        if node.name in names:
            weight = weights[node.input[position]]
            inserted, tensors = rewrite(node, weight)
            nodes += inserted
            model.graph.initializer.remove(weight)
            model.graph.initializer.extend(tensors)
        else:
            nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _product(node: onnx.NodeProto, weight: onnx.TensorProto) -> Inserted:
    axis = output_axis(node)
    quantized, scale = _quantize(weight, axis)
    scales = numpy_helper.from_array(np.expand_dims(scale, 1 - axis), f"{weight.name}_scale")
    wide = f"{weight.name}_wide"
    made = [
        helper.make_node("Cast", [quantized.name], [wide], f"{node.name}_weight_Cast", to=TensorProto.FLOAT),
        helper.make_node("Mul", [wide, scales.name], [weight.name], f"{node.name}_weight_Mul"),
    ]
    return [*made, node], [quantized, scales]


def _lookup(node: onnx.NodeProto, weight: onnx.TensorProto) -> Inserted:
    quantized, scale = _quantize(weight, 0)
    scales = numpy_helper.from_array(scale[:, None], f"{weight.name}_scale")
    out = node.output[0]
    base = node.name.removesuffix("Gather")
    row, wide, factor = f"{out}_quantized", f"{out}_wide", f"{out}_scale"
    made = [
        helper.make_node("Gather", [quantized.name, node.input[1]], [row], node.name),
        helper.make_node("Cast", [row], [wide], f"{base}Cast", to=TensorProto.FLOAT),
        helper.make_node("Gather", [scales.name, node.input[1]], [factor], f"{base}Gather_scale"),
        helper.make_node("Mul", [wide, factor], [out], f"{base}Mul"),
    ]
    return made, [quantized, scales]


def _quantize(weight: onnx.TensorProto, axis: int) -> tuple[onnx.TensorProto, NDArray[Any]]:
    """Quantise symmetrically and by channel: an outlier costs only its own channel."""
    from onnxruntime.quantization.quant_utils import compute_data_quant_params, quantize_onnx_initializer

    channels = np.moveaxis(numpy_helper.to_array(weight), axis, 0)
    pairs = [compute_data_quant_params(channel, TensorProto.INT8, symmetric=True) for channel in channels]
    zero, scale = (np.array(column) for column in zip(*pairs, strict=True))
    return quantize_onnx_initializer(weight, TensorProto.INT8, zero, scale, axis), scale.astype(np.float32)


ZERO, LAST_AXIS = "nothing", "last_axis"


def carry_nan(model: onnx.ModelProto, original: onnx.ModelProto, names: Collection[str]) -> None:
    """Let NaN pass through the products ``names`` of ``original``, which have 8 bits in ``model``."""
    products = {node.output[0]: node for node in original.graph.node if node.name in names}
    nodes = []
    for node in model.graph.node:
        nodes.append(node)
        for index, name in enumerate(node.output):
            if name in products:
                node.output[index] = f"{name}_of_8_bits"
                nodes += _carrying(products[name])
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.initializer.append(numpy_helper.from_array(np.array(0.0, np.float32), ZERO))
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1], np.int64), LAST_AXIS))


def _carrying(product: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    x, out = product.input[0], product.output[0]
    yield helper.make_node("Mul", [x, ZERO], [f"{out}_zeros"], f"{product.name}_zeros")
    yield helper.make_node("ReduceSum", [f"{out}_zeros", LAST_AXIS], [f"{out}_lost"], f"{product.name}_lost")
    yield helper.make_node("Add", [f"{out}_of_8_bits", f"{out}_lost"], [out], f"{product.name}_carried")


PRODUCTS = ("MatMul", "Gemm")


@dataclass(frozen=True)
class Selection:
    """Names of nodes. ``tables`` are the Gather nodes of embeddings, ``kept`` those that stay in float32 on request."""

    products: tuple[str, ...]
    tables: tuple[str, ...]
    kept: tuple[str, ...]


def select(model: onnx.ModelProto, attentions: Sequence[AttentionCall], keep: Sequence[str]) -> Selection:
    """Select the nodes whose weight has no other reader, and name those without a name of their own."""
    nodes = list(model.graph.node)
    core = core_nodes(model, attentions)
    matrices = {t.name for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT and len(t.dims) == 2}
    readers = Counter(name for node in nodes for name in reads(node))
    readers.update(value.name for value in model.graph.output)
    chosen = [n for i, n in enumerate(nodes) if i not in core and readers[_weight(n)] == 1 and _weight(n) in matrices]
    _give_names(chosen, nodes)
    kept = _kept([node.name for node in chosen], keep)
    chosen = [node for node in chosen if node.name not in kept]
    if not chosen:
        why = "keep names them all" if kept else "it has no MatMul, Gemm or Gather with a matrix of its own"
        raise InputError(f"There is no weight to quantise in the model: {why}.")
    return Selection(
        tuple(node.name for node in chosen if node.op_type in PRODUCTS),
        tuple(node.name for node in chosen if node.op_type == "Gather"),
        kept,
    )


def core_nodes(model: onnx.ModelProto, attentions: Sequence[AttentionCall]) -> set[int]:
    """The nodes of inlined orthogonal attention: those between a call's inputs and its output."""
    nodes = list(model.graph.node)
    maker = makers(nodes)
    return {i for call in attentions for i in between(nodes, maker, set(call.inputs), [call.output])}


def output_axis(node: onnx.NodeProto) -> int:
    """The axis of a product's weight that has one entry for each output."""
    transposed = any(a.name == "transB" and a.i for a in node.attribute)
    return 0 if node.op_type == "Gemm" and transposed else 1


def _weight(node: onnx.NodeProto) -> str:
    if node.op_type in PRODUCTS and node.domain == "":
        return node.input[1]
    axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
    return node.input[0] if node.op_type == "Gather" and node.domain == "" and axis == 0 else ""


def _give_names(chosen: Sequence[onnx.NodeProto], nodes: Sequence[onnx.NodeProto]) -> None:
    """Name the nodes: ONNX Runtime's quantiser takes them by name."""
    taken = Counter(node.name for node in nodes)
    for node in chosen:
        if not node.name or taken[node.name] > 1:
            taken[node.name] -= 1
            base = node.name or node.op_type
            node.name = next(name for i in range(len(nodes) + 1) if not taken[name := f"{base}_{i}"])
            taken[node.name] += 1


def _kept(names: Sequence[str], keep: Sequence[str]) -> tuple[str, ...]:
    """The nodes to keep; a pattern matches a part, such as head or stack.blocks.0, or the name of a node."""
    found: set[str] = set()
    for pattern in keep:
        matching = {name for name in names if _matches(name, pattern)}
        if not matching:
            shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
            raise InputError(f"keep={pattern!r} names no weight that would be quantised; there are {shown}.")
        found |= matching
    return tuple(name for name in names if name in found)


def _matches(name: str, pattern: str) -> bool:
    parts = name.rpartition("/")[0].split(".")
    prefixes = [".".join(parts[: i + 1]) for i in range(len(parts))]
    return any(fnmatch.fnmatchcase(candidate, pattern) for candidate in (name, *prefixes))
