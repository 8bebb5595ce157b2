"""The parts that tests of training runs share."""

from __future__ import annotations

from pathlib import Path

from osa_runtime.training import EpochRecord


class Watcher:
    """Counts what a run tells, and pulls the plug at a chosen step."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.stop_at, self.steps, self.finished, self.records = stop_at, 0, 0, list[EpochRecord]()

    def begin(self, epochs: int, steps: int, finished: int) -> None:
        self.finished = finished

    def step(self, epoch: int, loss: float, accuracy: float) -> None:
        self.steps += 1
        if self.steps == self.stop_at:
            raise KeyboardInterrupt

    def epoch(self, record: EpochRecord) -> None:
        self.records.append(record)


def weights(out: Path) -> bytes:
    return (out / "checkpoint" / "model.safetensors").read_bytes()


def names(out: Path) -> set[str]:
    return {path.name for path in out.iterdir()}
