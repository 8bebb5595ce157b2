"""The result of a benchmark, as objects and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from osa_runtime.benchmarking.configurations import Configuration
from osa_runtime.benchmarking.figures import Figures, Percentiles
from osa_runtime.benchmarking.memory import MemoryGrowth
from osa_runtime.benchmarking.node_profile import NodeProfile

VERSION = 1
ARTIFACT, EAGER = "artifact", "eager"
TIMED = "one call with arrays in and arrays out: checks of the inputs and copies to and from the device are part of it"


@dataclass(frozen=True)
class Measurement:
    """The figures of one configuration by contender. ``ratio`` is eager's time over the artifact's.

    ``cores_busy_with_others`` is None where the system does not report it.
    """

    configuration: Configuration
    shapes: Mapping[str, tuple[int, ...]]
    figures: Mapping[str, Figures]
    cores_busy_with_others: float | None = None
    ratio: Percentiles | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "batch": self.configuration.batch,
            "tokens": self.configuration.tokens,
            "inputs": {name: list(shape) for name, shape in self.shapes.items()},
            "cores_busy_with_others": self.cores_busy_with_others,
            "contenders": {name: figures.as_dict() for name, figures in self.figures.items()},
            "ratio": self.ratio.as_dict() if self.ratio else None,
        }


@dataclass(frozen=True)
class BenchmarkResult:
    """``load_seconds`` and ``memory`` are by contender; ``memory`` is empty where it was not measured."""

    artifact: Mapping[str, Any]
    against: Mapping[str, Any] | None
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    fed: str
    load_seconds: Mapping[str, float]
    measurements: tuple[Measurement, ...]
    memory: Mapping[str, MemoryGrowth] = field(default_factory=dict)
    profile: NodeProfile | None = None
    notes: tuple[str, ...] = ()

    @property
    def contenders(self) -> tuple[str, ...]:
        return tuple(self.measurements[0].figures)

    @property
    def doubts(self) -> list[str]:
        """Reasons not to trust figures: the first of each configuration that has one."""
        first = [(m, next((f.doubt for f in m.figures.values() if f.doubt), None)) for m in self.measurements]
        return [f"{m.configuration}: {doubt}" for m, doubt in first if doubt]

    def as_dict(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "artifact": dict(self.artifact),
            "against": dict(self.against) if self.against else None,
            "machine": dict(self.machine),
            "settings": dict(self.settings),
            "timed": TIMED,
            "fed": self.fed,
            "load_seconds": dict(self.load_seconds),
            "configurations": [self._described(i) for i in range(len(self.measurements))],
            "memory_growth_at_load": {name: grown.load for name, grown in self.memory.items()},
            "profile": self.profile.as_dict() if self.profile else None,
            "trustworthy": not self.doubts,
            "notes": list(self.notes),
        }

    def _described(self, index: int) -> dict[str, Any]:
        described = self.measurements[index].as_dict()
        for name, figures in described["contenders"].items():
            figures["peak_memory_growth"] = self.memory[name].run[index] if name in self.memory else None
        return described
