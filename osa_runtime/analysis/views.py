"""Attention layers as they are seen in one run, of a checkpoint in eager PyTorch or of an exported model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from osa_runtime.analysis.measures import (
    exponent_norms,
    extreme_singular_values,
    jacobian,
    layers_of,
    matrices,
    recorded_inputs,
)
from osa_runtime.errors import InputError
from osa_runtime.evaluation import Samples, open_classifier
from osa_runtime.interface import Interface
from osa_runtime.models import load_checkpoint
from osa_runtime.nn.orthogonal import OrthogonalSelfAttention
from osa_runtime.nn.projection import ProjectedAttention
from osa_runtime.ops.spectral_norm import masked, spectral_norm
from osa_runtime.runtime.device import DeviceSettings
from osa_runtime.sample_inputs import sample_inputs, usual_sizes
from osa_runtime.verification.inside.model_parts import Core, ModelParts
from osa_runtime.verification.subject import Subject

Array = NDArray[Any]
MOST_TOKENS = 1024  # A is formed whole
LARGEST_JACOBIAN = 2048  # numbers in the tokens of a sequence; beyond, its Jacobian would take minutes


@dataclass(frozen=True)
class LayerView:
    """A layer in one run: its matrices (batch, heads, N, N), and ‖S‖ and α for OSA by head.

    ``tokens`` are the real ones of each sequence, (N, D). ``extremes`` are the largest and the smallest singular value
    of the layer's Jacobian on the first sequence; None where there are no gradients, as in an artifact, or too many
    tokens.
    """

    name: str
    tokens: tuple[Tensor, ...]
    matrices: Tensor
    norms: tuple[float, ...] | None
    alphas: tuple[float, ...] | None
    extremes: tuple[float, float] | None = None


def feeds_of(path: Path, samples: Samples | None, rows: int) -> tuple[dict[str, Array], Interface]:
    """The inputs of the model: some of the data, or random ones."""
    with open_classifier(path, DeviceSettings()) as model:
        interface = model.interface
        if samples is not None:
            return {name: array[:rows] for name, array in samples.limited(rows).feeds(model).items()}, interface
    return sample_inputs(interface, usual_sizes(interface, rows)), interface


def checkpoint_layers(path: Path, feeds: Mapping[str, Array]) -> list[LayerView]:
    model = load_checkpoint(path)
    with recorded_inputs(model) as seen, torch.no_grad():
        model(*(torch.from_numpy(feeds[spec.name]) for spec in model.interface().inputs))
    return [_eager_view(name, layer, *seen[name]) for name, layer in layers_of(model).items()]


def _eager_view(name: str, layer: ProjectedAttention, x: Tensor, mask: Tensor | None) -> LayerView:
    _check_length(name, x.size(1))
    norms = alphas = None
    with torch.no_grad():
        a = matrices(layer, x, mask)
        if isinstance(layer, OrthogonalSelfAttention):
            norms = _floats(exponent_norms(layer, x, mask).amax(0))
            alphas = _floats(layer.alpha)
    real, extremes = _real(x, mask), None
    if real[0].numel() <= LARGEST_JACOBIAN:
        extremes = extreme_singular_values(jacobian(layer, real[0][None]))
    return LayerView(name, real, a, norms, alphas, extremes)


def _real(x: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    return tuple(x) if mask is None else tuple(tokens[real] for tokens, real in zip(x, mask, strict=True))


def artifact_layers(path: Path, feeds: Mapping[str, Array]) -> list[LayerView]:
    """The layers of orthogonal attention, as the exported model computes them."""
    subject = Subject.open(path, DeviceSettings())
    parts = subject.model_parts()
    try:
        if not parts.attentions:
            raise InputError(
                f"{path} shows no layer of orthogonal attention; analyze the checkpoint that it was exported from."
            )
        tokens = parts.inputs_of(parts.attentions, feeds)
        cores = parts.cores_of(parts.attentions, feeds)
        return [_artifact_view(parts, name, tokens[name], cores[name]) for name in parts.attentions]
    finally:
        parts.close()


def _artifact_view(parts: ModelParts, name: str, tokens: Array, core: Core) -> LayerView:
    _check_length(name, core.q.shape[-2])
    q, k = (torch.tensor(x) for x in (core.q, core.k))  # copies: those of a runtime may be read-only
    mask = None if core.mask is None else torch.tensor(core.mask)
    scale = torch.tensor(core.scale, dtype=torch.float64).expand(q.size(1))
    norms = spectral_norm(masked(q, mask), masked(k, mask), scale)
    alphas = _floats(scale * math.sqrt(q.size(-1)))
    real = _real(torch.tensor(tokens), mask if mask is None else mask.reshape(tokens.shape[:2]))
    return LayerView(name, real, _whole(parts, name, core), _floats(norms.amax(0)), alphas)


def _whole(parts: ModelParts, name: str, core: Core) -> Tensor:
    """A from its columns: as many at a time as a head is wide."""
    tokens, width = core.v.shape[-2:]
    columns = []
    for start in range(0, tokens, width):
        unit = np.zeros_like(core.v)
        for column in range(start, min(start + width, tokens)):
            unit[..., column, column - start] = 1
        columns.append(parts.apply_attention(name, core, unit)[..., : min(width, tokens - start)])
    return torch.from_numpy(np.concatenate(columns, -1))


def _check_length(name: str, tokens: int) -> None:
    if tokens > MOST_TOKENS:
        raise InputError(f"{name} has {tokens} tokens; matrices are shown for up to {MOST_TOKENS}. Pass shorter data.")


def _floats(values: Tensor) -> tuple[float, ...]:
    return tuple(float(value) for value in values.detach())
