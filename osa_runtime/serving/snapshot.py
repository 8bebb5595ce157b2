"""The figures of one process at a moment, or of several workers together."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from osa_runtime.serving.statistics import ModelStatistics

if TYPE_CHECKING:
    from osa_runtime.serving.engine import Engine

Key = tuple[str, int]  # a model and its version


@dataclass
class Snapshot:
    """``pages`` are those of the book; ``latest`` and ``most`` are squarings, by model and layer."""

    pages: dict[Key, ModelStatistics] = field(default_factory=dict)
    queued: Counter[Key] = field(default_factory=Counter)
    running: Counter[Key] = field(default_factory=Counter)
    latest: dict[tuple[Key, str], int] = field(default_factory=dict)
    most: dict[tuple[Key, str], int] = field(default_factory=dict)
    connections: int = 0

    @classmethod
    def of(cls, engine: Engine) -> Snapshot:
        taken = cls(dict(engine.book.items()), connections=engine.connections.open)
        for model in engine.repository.served():
            key = model.name, model.version
            taken.queued[key] = model.batcher.queued
            taken.running[key] = model.batcher.running
            counts = model.session.squarings
            if counts is not None:
                taken.latest |= {(key, layer): count for layer, count in counts.latest.items()}
                taken.most |= {(key, layer): count for layer, count in counts.most.items()}
        return taken

    def page(self, key: Key) -> ModelStatistics:
        return self.pages.get(key) or ModelStatistics()

    def plus(self, other: Snapshot) -> Snapshot:
        pages = dict(self.pages)
        for key, page in other.pages.items():
            pages[key] = pages[key].plus(page) if key in pages else page
        return Snapshot(
            pages,
            self.queued + other.queued,
            self.running + other.running,
            _larger(self.latest, other.latest),
            _larger(self.most, other.most),
            self.connections + other.connections,
        )

    def past(self) -> Snapshot:
        """What remains of a process that has ended: what it counted, not what it was doing."""
        return Snapshot(self.pages, most=self.most)


def _larger(mine: dict[tuple[Key, str], int], theirs: dict[tuple[Key, str], int]) -> dict[tuple[Key, str], int]:
    return {layer: max(mine.get(layer, 0), theirs.get(layer, 0)) for layer in {**mine, **theirs}}
