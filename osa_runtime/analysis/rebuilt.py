"""Layers of an artifact in eager PyTorch again, in float64: a runtime returns answers, and no gradients of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from osa_runtime.nn.orthogonal import OrthogonalSelfAttention
from osa_runtime.onnx_layers import with_projections
from osa_runtime.runtime.session import Session
from osa_runtime.runtime.torch_session import TorchSession
from osa_runtime.verification.inside.model_parts import Core

Array = NDArray[Any]
AGREEMENT = 0.01  # of the answer's norm: beyond rounding to half precision, so that it is another layer


def matrices_of(session: Session) -> dict[str, Array]:
    """The matrices of the model's products as its checkpoint names them, as far as they are floats."""
    if isinstance(session, TorchSession):
        return {name: tensor.numpy() for name, tensor in session.module.state_dict().items() if tensor.ndim == 2}
    from onnx.numpy_helper import to_array

    from osa_runtime.onnx_files import read_onnx

    calls = session.manifest.attentions if session.manifest is not None else ()
    model, _ = with_projections(read_onnx(session.path), calls)
    stored = {tensor.name: tensor for tensor in model.graph.initializer}
    return {
        f"{node.name.removesuffix('/MatMul')}.weight": to_array(stored[node.input[1]], str(session.path.parent)).T
        for node in model.graph.node
        if node.op_type == "MatMul" and node.input[1] in stored
    }


def rebuilt(name: str, matrices: Mapping[str, Array], core: Core) -> OrthogonalSelfAttention | None:
    """The layer from its matrices, its heads and their scales; None if it is not one of our layers with its weights."""
    packed, out = (matrices.get(f"{name}.{part}.weight") for part in ("project", "out"))
    heads, width = core.q.shape[1], core.q.shape[-1]
    dim = heads * width
    if packed is None or out is None or packed.shape != (3 * dim, dim) or out.shape != (dim, dim):
        return None
    layer = OrthogonalSelfAttention(dim, heads).double()
    with torch.no_grad():
        layer.project.weight.copy_(torch.tensor(packed))
        layer.out.weight.copy_(torch.tensor(out))
        layer.alpha.copy_(torch.tensor(core.scale, dtype=torch.float64).expand(heads) * width**0.5)
    return layer


@torch.no_grad()
def answers_alike(layer: OrthogonalSelfAttention, tokens: Tensor, answer: Tensor) -> bool:
    """True if the layer returns for these tokens (N, dim) what the artifact returned."""
    expected = layer(tokens.double()[None])[0]
    return bool((answer - expected).norm() <= AGREEMENT * expected.norm())
