"""A layer of orthogonal attention that is one node: its heads are seen by running the node with other weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper

from osa_runtime.onnx_layers import DOMAIN
from osa_runtime.verification.inside.model_parts import Array, Core

NAMES = ("x", "weight", "out", "scale", "mask")


class LayerNode:
    """The node alone, with its functions, in ONNX Runtime; all of its inputs are inputs of the model."""

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

    def core(self, x: Array, weight: Array, scale: Array, mask: Array | None) -> Core:
        """What the node makes of its own input, by head: W_O is replaced by the identity.

        Queries, keys and values are in float64, since the folded node rounds none of them; and as it rounds them where
        it does not fold.
        """
        heads, width = scale.size, weight.shape[1] // (3 * scale.size)
        rows = _by_head(x.astype(np.float64) @ weight.astype(np.float64), heads)
        q, k, v = np.split(rows, 3, -1)
        out, squarings, packed = self._run(x, weight, np.eye(heads * width), scale, mask)
        rounded = tuple(np.split(_by_head(packed, heads), 3, -1))
        tokens = None if mask is None else mask[:, None]
        return Core(q, k, v, scale, tokens, _by_head(out, heads), int(squarings), rounded)

    def applied(self, core: Core, v: Array) -> Array:
        """exp(S)·v: with [Q K V] as the tokens and the identity as the weight."""
        packed = np.concatenate([core.q, core.k, v], -1)
        heads, width = packed.shape[1], packed.shape[3]
        x = packed.transpose(0, 2, 1, 3).reshape(packed.shape[0], packed.shape[2], heads * width)
        mask = None if core.mask is None else core.mask[:, 0]
        out, *_ = self._run(x, np.eye(heads * width), np.eye(heads * v.shape[-1]), core.scale, mask)
        return _by_head(out, heads)

    def _run(self, x: Array, weight: Array, out: Array, scale: Array, mask: Array | None) -> tuple[Array, Array, Array]:
        floats = (np.ascontiguousarray(value, self._type) for value in (x, weight, out, scale))
        feeds = dict(zip(NAMES, floats, strict=False))
        if mask is not None:
            feeds["mask"] = mask
        y, squarings, packed = self._session.run(None, feeds)
        return y, squarings, packed


def _by_head(x: Array, heads: int) -> Array:
    """(b, N, h·d) → (b, h, N, d)."""
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)
