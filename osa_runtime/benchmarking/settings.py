"""The settings of a benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from osa_runtime.benchmarking.rotation import Schedule
from osa_runtime.environment import usable_cores
from osa_runtime.runtime.session import Session

Array = NDArray[Any]
# The caller's arrays by input name, and notes on them, for a model.
ReadData = Callable[[Session], tuple[Mapping[str, Array], list[str]]]


@dataclass(frozen=True)
class BenchmarkSettings:
    """``against`` is a checkpoint to compare with; ONNX Runtime's trace of the nodes is written to ``trace``."""

    artifact: Path
    against: Path | None = None
    batches: tuple[int, ...] | None = None
    tokens: tuple[int, ...] | None = None
    schedule: Schedule = field(default_factory=Schedule)
    threads: int = field(default_factory=usable_cores)
    device: str = "cpu"
    seed: int = 0
    read_data: ReadData | None = None
    memory: bool = True
    trace: Path | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "batches": self.batches,
            "tokens": self.tokens,
            **asdict(self.schedule),
            "threads": self.threads,
            "device": self.device,
            "seed": self.seed,
        }
