"""8-bit weights in front of float32 arithmetic, by Cast and Mul.

A runtime computes these two once, when it loads the model, as they depend on nothing else. A DequantizeLinear would be
computed in every run, and ONNX Runtime may even fuse it into a product that rounds the activations to 8 bits, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from osa_runtime.quantization.selection import output_axis

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
