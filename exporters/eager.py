"""Eager PyTorch for comparison: the same model in the exported precision, or in float64 as the oracle."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from osa_runtime.errors import ExponentRangeError, InputError, OsaError, RunError
from osa_runtime.ops import reference
from osa_runtime.ops.interception import intercept
from osa_runtime.ops.spectral_norm import masked, spectral_norm
from osa_runtime.parity.tolerances import moved

Array = NDArray[Any]

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "fp64": torch.float64}
DTYPES |= dict.fromkeys(("w8", "w8a8"), torch.float32)  # fewer bits in a file; computation is in float32


class Eager:
    """A module that takes and returns arrays by name. Floating-point inputs are converted to its precision."""

    def __init__(self, module: nn.Module, inputs: Sequence[str], outputs: Sequence[str], dtype: str) -> None:
        self.module = copy.deepcopy(module).eval().requires_grad_(False).to(DTYPES[dtype])
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.dtype = dtype
        self._norms: list[NDArray[np.float64]] = []

    @property
    def norms(self) -> NDArray[np.float64]:
        """The largest ‖S‖₂ of all attention layers in the latest run, by row; only the oracle measures it."""
        rows = {norms.size for norms in self._norms}
        if not rows:
            return np.zeros(1)
        stacked = np.stack(self._norms) if len(rows) == 1 else np.array([[norms.max()] for norms in self._norms])
        return stacked.max(0)  # NaN where any is

    def tensors(self, arrays: Sequence[Array]) -> list[Tensor]:
        return [_tensor(array, DTYPES[self.dtype]) for array in arrays]

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        self._norms.clear()
        return self._run(feeds, {})

    def moved(self, feeds: Mapping[str, Array], amount: float, seed: int, coarse: bool) -> dict[str, Array]:
        """The outputs after every weight and input value changed at random by up to ``amount`` of itself.

        ``coarse``: weights change by up to ``amount`` of the largest in their channel, as quantisation changes them.
        """
        norms = list(self._norms)
        generator = np.random.default_rng(seed)
        changed = {name: moved(array, amount, generator) for name, array in feeds.items()}
        try:
            return self._run(changed, moved_state(self.module, amount, seed, coarse))
        finally:
            self._norms = norms

    def _run(self, feeds: Mapping[str, Array], state: Mapping[str, Tensor]) -> dict[str, Array]:
        with torch.no_grad(), self.attention():
            values = self._values(feeds, state)
        found = [values] if isinstance(values, Tensor) else list(values)
        if len(found) != len(self.outputs):
            raise RunError(f"The eager model returns {len(found)} outputs, expected {', '.join(self.outputs)}.")
        return {name: value.numpy() for name, value in zip(self.outputs, found, strict=True)}

    def _values(self, feeds: Mapping[str, Array], state: Mapping[str, Tensor]) -> Any:
        arguments = tuple(self.tensors([feeds[name] for name in self.inputs]))
        try:
            if not state:
                return self.module(*arguments)
            return torch.func.functional_call(self.module, dict(state), arguments)
        except OsaError:
            raise
        except (RuntimeError, IndexError, ValueError, TypeError) as error:
            shapes = ", ".join(f"{name}: {array.dtype}{list(array.shape)}" for name, array in feeds.items())
            raise InputError(f"Eager PyTorch cannot run these inputs ({shapes}): {error}") from error

    @contextlib.contextmanager
    def attention(self) -> Iterator[None]:
        """Attention of this precision; in float64 by eigenvalues, which share no code with the operator.

        By queries, keys and values: a folded layer rounds less.
        """
        with intercept(self._exact_attention if self.dtype == "fp64" else None):
            yield

    def _exact_attention(self, q: Tensor, k: Tensor, v: Tensor, scale: Any, mask: Tensor | None, *_: Any) -> Tensor:
        real_q, real_k, real_v = (masked(x, mask) for x in (q, k, v))
        factor = torch.as_tensor(scale, dtype=torch.float64).expand(q.shape[:-2])
        norms = spectral_norm(real_q, real_k, factor)
        self._norms.append(norms.reshape(norms.shape[0] if norms.dim() > 1 else 1, -1).amax(1).numpy())
        # Eigenvalues exist for finite entries only; NaN and Inf make their entry NaN, as in the operator.
        broken = ~torch.stack([x.isfinite().all(-1).all(-1) for x in (real_q, real_k, real_v)]).all(0)[..., None, None]
        clean_q, clean_k, clean_v = (x.masked_fill(broken, 0.0) for x in (q, k, v))
        exact = exact_attention(clean_q, clean_k, clean_v, scale, mask)
        poisoned = broken if mask is None else broken & mask[..., None]
        return torch.where(poisoned, torch.nan, torch.where(broken, v, exact))


def exact_attention(q: Tensor, k: Tensor, v: Tensor, scale: Any, mask: Tensor | None) -> Tensor:
    """exp(S)·V in float64 from eigenvalues: of S itself if it is not larger than the core of Theorem 2.1."""
    if q.size(-2) <= 2 * q.size(-1):
        return reference.orthogonal_attention(q, k, v, scale, mask)
    return reference.lowrank_orthogonal_attention(q, k, v, scale, mask)


def oracle_of(module: nn.Module, inputs: Sequence[str], outputs: Sequence[str]) -> Eager | None:
    """The module in float64; None for one that cannot be converted."""
    try:
        return Eager(module, inputs, outputs, "fp64")
    except Exception:  # noqa: BLE001 - a user's own module may do anything when it is copied or converted
        return None


def answer_of(oracle: Eager | None, feeds: Mapping[str, Array]) -> dict[str, Array] | None:
    """The answer in float64; None if the module does not run in it, as with constants of another type in its code."""
    if oracle is None:
        return None
    try:
        return oracle.run(feeds)
    except (InputError, RunError, ExponentRangeError):
        return None


def _tensor(array: Array, dtype: torch.dtype) -> Tensor:
    tensor = torch.from_numpy(array.copy())
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def moved_state(module: nn.Module, amount: float, seed: int, coarse: bool) -> dict[str, Tensor]:
    """All floating-point parameters and buffers, each value moved by up to ``amount`` of itself.

    ``coarse``: by up to ``amount`` of the largest value of its channel instead, as quantisation does to matrices.
    """
    generator = torch.Generator().manual_seed(seed)
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: _moved(x.detach(), amount, generator, coarse) for name, x in state.items() if x.is_floating_point()}


def _moved(x: Tensor, amount: float, generator: torch.Generator, coarse: bool) -> Tensor:
    size = x.abs().amax(tuple(range(1, x.dim())), keepdim=True) if coarse and x.dim() > 1 else x
    return x + amount * size * (2 * torch.rand(x.shape, generator=generator, dtype=x.dtype) - 1)


def rounding_depth(module: nn.Module) -> int:
    """The depth of a model for the table of tolerances: rounding adds up over the matrices of all its layers."""
    return max(4, sum(parameter.dim() >= 2 for parameter in module.parameters()))
