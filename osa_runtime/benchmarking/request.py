"""What ``osa bench`` was asked to measure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from osa_runtime.benchmarking.configurations import Sizes
from osa_runtime.benchmarking.machine import usable_cores
from osa_runtime.benchmarking.rotation import Schedule
from osa_runtime.runtime.session import Session

Array = NDArray[Any]
# The caller's arrays by input name, and notes on them, for a model.
ReadData = Callable[[Session], tuple[Mapping[str, Array], list[str]]]


@dataclass(frozen=True)
class Request:
    """``against`` is a checkpoint to compare with, ``trace`` where ONNX Runtime's trace of the nodes goes."""

    artifact: Path
    against: Path | None = None
    batches: Sizes | None = None
    tokens: Sizes | None = None
    schedule: Schedule = field(default_factory=Schedule)
    threads: int = field(default_factory=usable_cores)
    device: str = "cpu"
    seed: int = 0
    read_data: ReadData | None = None
    memory: bool = True
    trace: Path | None = None

    def settings(self) -> dict[str, Any]:
        return {
            "batches": self.batches,
            "tokens": self.tokens,
            **asdict(self.schedule),
            "threads": self.threads,
            "device": self.device,
            "seed": self.seed,
        }
