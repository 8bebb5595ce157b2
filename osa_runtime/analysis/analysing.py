"""``analyze``: what a trained model does inside, layer by layer and head by head."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch

from osa_runtime.analysis.measures import effective_rank, mean_cosine, residual_from_rank_one
from osa_runtime.analysis.views import Array, LayerView, artifact_layers, checkpoint_layers, feeds_of
from osa_runtime.errors import InputError
from osa_runtime.evaluation import read_samples
from osa_runtime.recognition import CONFIG_FILE, checkpoint_folder

RANDOM = "random inputs"


@dataclass(frozen=True)
class LayerFacts:
    """Facts of one layer; those of heads are lists. ``defects`` are ‖AᵀA − I‖, the largest entry.

    ``without_jacobian`` says why there are no singular values of it.
    """

    name: str
    norms: tuple[float, ...] | None
    alphas: tuple[float, ...] | None
    defects: tuple[float, ...]
    sizes: tuple[float, ...]
    residual: float
    cosine: float | None
    effective_rank: float
    largest_singular_value: float | None
    smallest_singular_value: float | None
    without_jacobian: str | None = None

    @property
    def condition(self) -> float | None:
        if not self.smallest_singular_value or self.largest_singular_value is None:
            return None
        return self.largest_singular_value / self.smallest_singular_value


@dataclass(frozen=True)
class Analysis:
    """Facts of all layers; ``pictures`` are (batch, height, width) if the model takes images."""

    model: str
    kind: str
    data: str
    rows: int
    tokens: int
    layers: tuple[LayerFacts, ...]
    views: tuple[LayerView, ...]
    pictures: Array | None

    def without_jacobian(self) -> dict[str, list[str]]:
        """Why there are no singular values, and the layers of which there are none."""
        found: dict[str, list[str]] = {}
        for layer in self.layers:
            if layer.without_jacobian is not None:
                found.setdefault(layer.without_jacobian, []).append(layer.name)
        return found

    def to_json(self) -> dict[str, Any]:
        facts = {key: getattr(self, key) for key in ("model", "kind", "data", "rows", "tokens")}
        return {"format": 1, **facts, "layers": [asdict(layer) for layer in self.layers]}


def analyze(
    model: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    *,
    rows: int = 8,
    data_folder: str | os.PathLike[str] | None = None,
) -> Analysis:
    """Look inside a checkpoint or an artifact on ``rows`` samples of ``data``, or on random inputs.

    ``data`` is as in ``evaluate``: a known data set, of which test images are taken, or an .npz file.
    """
    if rows < 1:
        raise InputError(f"rows={rows}: expected a whole number from 1 on.")
    path = Path(model)
    samples = None if data is None else read_samples(str(data), None if data_folder is None else Path(data_folder))
    feeds, interface = feeds_of(path, samples, rows)
    eager = (checkpoint_folder(path) / CONFIG_FILE).is_file() and path.is_dir()
    views = checkpoint_layers(path, feeds) if eager else artifact_layers(path, feeds)
    first = feeds[interface.inputs[0].name]
    pictures = np.asarray(first, np.float64).mean(1) if first.ndim == 4 else None
    return Analysis(
        path.name,
        "checkpoint" if eager else "artifact",
        RANDOM if samples is None else samples.name,
        len(first),
        views[0].matrices.size(-1),
        tuple(_facts(view) for view in views),
        tuple(views),
        pictures,
    )


def _facts(view: LayerView) -> LayerFacts:
    a = view.matrices.double()
    defects = (a.mT @ a - torch.eye(a.size(-1), dtype=torch.float64)).abs().amax((-2, -1)).amax(0)
    reason = view.extremes if isinstance(view.extremes, str) else None
    largest, smallest = (None, None) if isinstance(view.extremes, str) else view.extremes
    cosines = [float(mean_cosine(x)) for x in view.tokens if len(x) > 1]
    return LayerFacts(
        view.name,
        view.norms,
        view.alphas,
        tuple(float(value) for value in defects),
        tuple(float(value) for value in torch.linalg.matrix_norm(a).mean(0)),
        mean(float(residual_from_rank_one(x)) for x in view.tokens),
        mean(cosines) if cosines else None,
        mean(float(effective_rank(x)) for x in view.tokens),
        largest,
        smallest,
        reason,
    )
