"""Eager PyTorch as a party: the same model in the exported precision, or in float64 as the oracle."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from osa_runtime.errors import InputError, OsaError, RunError
from osa_runtime.ops import attention, reference
from osa_runtime.ops.interception import intercept
from osa_runtime.verification.inside.insides import Array
from osa_runtime.verification.norms import masked, spectral_norm

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "fp64": torch.float64}
DTYPES |= dict.fromkeys(("w8", "w8a8"), torch.float32)  # fewer bits in a file; what is computed with is float32

# The reference takes time N³; beyond this the oracle uses the operator itself, in float64.
LONGEST_REFERENCE = 64


class Eager:
    """A module that takes and gives arrays by name. Floating-point inputs are converted to its precision."""

    def __init__(self, module: nn.Module, inputs: Sequence[str], outputs: Sequence[str], dtype: str) -> None:
        self.module = copy.deepcopy(module).eval().requires_grad_(False).to(DTYPES[dtype])
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.dtype = dtype
        self._norms: list[float] = []

    @property
    def largest_norm(self) -> float:
        """The largest ‖S‖₂ of all attention layers in the latest run; only the oracle measures it."""
        return max(self._norms, default=0.0)

    def tensors(self, arrays: Sequence[Array]) -> list[Tensor]:
        return [_tensor(array, DTYPES[self.dtype]) for array in arrays]

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        self._norms.clear()
        with torch.no_grad(), self.attention():
            values = self._values(feeds)
        found = [values] if isinstance(values, Tensor) else list(values)
        if len(found) != len(self.outputs):
            raise RunError(f"The eager model gives {len(found)} outputs, expected {', '.join(self.outputs)}.")
        return {name: value.numpy() for name, value in zip(self.outputs, found, strict=True)}

    def _values(self, feeds: Mapping[str, Array]) -> Any:
        try:
            return self.module(*self.tensors([feeds[name] for name in self.inputs]))
        except OsaError:
            raise
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            shapes = ", ".join(f"{name}: {array.dtype}{list(array.shape)}" for name, array in feeds.items())
            raise InputError(f"Eager PyTorch cannot run these inputs ({shapes}): {error}") from error

    @contextlib.contextmanager
    def attention(self) -> Iterator[None]:
        """In float64 the exponential comes from eigenvalues, which share no code with the operator."""
        if self.dtype != "fp64":
            yield
            return
        with intercept(self._exact_attention):
            yield

    def _exact_attention(self, *arguments: Any) -> Tensor:
        q, k, _, scale, mask = arguments[:5]
        factor = torch.as_tensor(scale, dtype=torch.float64).expand(q.shape[:-2])
        self._norms.append(float(spectral_norm(masked(q, mask), masked(k, mask), factor).max()))
        return _exact(*arguments)


def _exact(q: Tensor, k: Tensor, v: Tensor, scale: Any, mask: Tensor | None, *_: Any) -> Tensor:
    if q.size(-2) <= LONGEST_REFERENCE:
        return reference.orthogonal_attention(q, k, v, scale, mask)
    return attention._apply(q, k, v, scale, mask, "auto", "taylor", "auto")


def _tensor(array: Array, dtype: torch.dtype) -> Tensor:
    tensor = torch.from_numpy(array.copy())
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
