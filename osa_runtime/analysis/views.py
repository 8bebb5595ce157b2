"""Attention layers as they are seen in one run, of a checkpoint in eager PyTorch or of an exported model."""

from __future__ import annotations

import copy
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
from osa_runtime.analysis.rebuilt import answers_alike, matrices_of, rebuilt
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
    of the layer's Jacobian on the first sequence, in float64, or the reason why they are not known.
    """

    name: str
    tokens: tuple[Tensor, ...]
    matrices: Tensor
    norms: tuple[float, ...] | None
    alphas: tuple[float, ...] | None
    extremes: tuple[float, float] | str


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
    real = _real(x, mask)
    return LayerView(name, real, a, norms, alphas, _extremes(copy.deepcopy(layer), real[0]))


def _extremes(layer: ProjectedAttention, tokens: Tensor) -> tuple[float, float] | str:
    if tokens.numel() > LARGEST_JACOBIAN:
        return f"a sequence holds {tokens.numel()} numbers, and it is computed for up to {LARGEST_JACOBIAN}"
    return extreme_singular_values(jacobian(layer.double(), tokens.double()[None]))


def _real(x: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
    return tuple(x) if mask is None else tuple(tokens[real] for tokens, real in zip(x, mask, strict=True))


def artifact_layers(path: Path, feeds: Mapping[str, Array]) -> list[LayerView]:
    """The layers of orthogonal attention, as the exported model computes them."""
    subject = Subject.open(path, DeviceSettings())
    parts = subject.model_parts()
    try:
        attentions = [name for name in parts.attentions if name in parts.units]
        if not attentions:
            raise InputError(
                f"{path} shows no layer of orthogonal attention; analyze the checkpoint that it was exported from."
            )
        tokens, answers = parts.inputs_of(attentions, feeds), parts.outputs_of(attentions, feeds)
        cores, matrices = parts.cores_of(attentions, feeds), matrices_of(subject.session)
        layers = {name: rebuilt(name, matrices, cores[name]) for name in attentions}
        return [_artifact_view(parts, n, (tokens[n], answers[n]), cores[n], layers[n]) for n in attentions]
    finally:
        parts.close()


def _artifact_view(
    parts: ModelParts, name: str, run: tuple[Array, Array], core: Core, layer: OrthogonalSelfAttention | None
) -> LayerView:
    """``run`` are the tokens that the layer received, and its answer."""
    _check_length(name, core.q.shape[-2])
    q, k = (torch.tensor(x) for x in (core.q, core.k))  # copies: those of a runtime may be read-only
    mask = None if core.mask is None else torch.tensor(core.mask)
    scale = torch.tensor(core.scale, dtype=torch.float64).expand(q.size(1))
    norms = spectral_norm(masked(q, mask), masked(k, mask), scale)
    alphas = _floats(scale * math.sqrt(q.size(-1)))
    tokens, answers = (_real(torch.tensor(x), mask if mask is None else mask.reshape(x.shape[:2])) for x in run)
    extremes = _rebuilt_extremes(layer, tokens[0], answers[0])
    return LayerView(name, tokens, _whole(parts, name, core), _floats(norms.amax(0)), alphas, extremes)


def _rebuilt_extremes(
    layer: OrthogonalSelfAttention | None, tokens: Tensor, answer: Tensor
) -> tuple[float, float] | str:
    if layer is None:
        return "the artifact does not hold the matrices of a layer of this package in floating point"
    if not answers_alike(layer, tokens, answer):
        return "the layer that its matrices make in eager PyTorch does not answer as the artifact does"
    return _extremes(layer, tokens)


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
