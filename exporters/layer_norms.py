"""‖S‖₂ of every attention layer of a module in one eager run."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from osa_runtime.ops import attention
from osa_runtime.ops.interception import intercept
from osa_runtime.ops.spectral_norm import masked, spectral_norm


def norms_by_layer(module: nn.Module, inputs: Sequence[Tensor]) -> dict[str, float]:
    """The largest ‖S‖₂ over batch and heads, by the innermost layer that calls orthogonal attention."""
    inside: list[str] = [""]
    found: dict[str, float] = {}

    def record(*arguments: Any) -> Tensor:
        q, k, _, scale, mask = arguments[:5]
        factor = torch.as_tensor(scale, dtype=torch.float64).expand(q.shape[:-2])
        norm = float(spectral_norm(masked(q, mask), masked(k, mask), factor).max())
        found[inside[-1]] = max(found.get(inside[-1], 0.0), norm)
        return attention._apply(*arguments)

    with contextlib.ExitStack() as hooks, intercept(record), torch.no_grad():
        for name, layer in [(name, layer) for name, layer in module.named_modules() if name]:
            before = layer.register_forward_pre_hook(lambda *_, name=name: inside.append(name))
            after = layer.register_forward_hook(lambda *_: inside.pop() and None)
            hooks.callback(before.remove)
            hooks.callback(after.remove)
        module(*inputs)
    return found
