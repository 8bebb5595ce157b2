"""Layers that are compared as a whole: export folds scales into their weights, so their parts differ from eager."""

from __future__ import annotations

from collections.abc import Iterable

from osa_runtime.nn import IsometricMLP
from osa_runtime.nn.projection import PackedProjection


def is_closed(kind: str, children: Iterable[str]) -> bool:
    """By the names of the classes, which are all that an artifact keeps.

    A layer with packed projections is one of the attention layers, or a subclass under a name of its own.
    """
    return _bare(kind) == IsometricMLP.__name__ or PackedProjection.__name__ in map(_bare, children)


def _bare(kind: str) -> str:
    return kind.rpartition(".")[2]
