"""How ``osa train`` shows that it advances: a bar on a terminal, one line per epoch in a log."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from osa_runtime.training import EpochRecord


class TrainingProgress:
    """An observer of a run; use it as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._epochs = self._steps = 0

    def __enter__(self) -> TrainingProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def begin(self, epochs: int, steps: int, finished: int) -> None:
        self._epochs, self._steps = epochs, steps
        if finished:
            self._console.print(f"Continuing after epoch {finished} of {epochs}.", highlight=False)
        self._task = self._bar.add_task("training", total=epochs * steps, completed=finished * steps, figures="")

    def step(self, epoch: int, loss: float, accuracy: float) -> None:
        assert self._task is not None, "begin comes first"
        figures = f"loss {loss:.3f}  accuracy {100 * accuracy:5.1f} %"
        self._bar.update(self._task, advance=1, description=f"epoch {epoch}/{self._epochs}", figures=figures)

    def epoch(self, record: EpochRecord) -> None:
        if not self._console.is_terminal:
            self._console.print(
                f"epoch {record.epoch}/{self._epochs}  loss {record.train_loss:.4f}  "
                f"accuracy {100 * record.train_accuracy:.2f} %  test {100 * record.test_accuracy:.2f} %  "
                f"{record.seconds:.1f} s",
                highlight=False,
                soft_wrap=True,
            )
