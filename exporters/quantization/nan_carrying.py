"""NaN and Inf past a product of 8 bits: as a number of 8 bits they would look like any other.

A graph says with NaN that an answer has no digits, so that it must come out: each product gets 0·x added, summed over
the axis that it sums over, which is 0 or NaN.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import onnx
from onnx import helper, numpy_helper

ZERO, LAST_AXIS = "nothing", "last_axis"


def carry_nan(model: onnx.ModelProto, original: onnx.ModelProto, names: Collection[str]) -> None:
    """``names`` are the products of ``original`` that have 8 bits in ``model``."""
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
