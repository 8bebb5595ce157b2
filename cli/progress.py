"""Progress of long commands: bars of ``osa train``, ``bench`` and ``evaluate``, lines of ``export``, ``quantize``."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    from osa_runtime.training import EpochRecord


class _Bar:
    """A bar on a terminal, otherwise nothing; used as a context manager."""

    def __init__(self, console: Console, *columns: ProgressColumn, transient: bool = False) -> None:
        shown = (TextColumn("{task.description}"), BarColumn(bar_width=24), *columns)
        self._bar = Progress(*shown, console=console, transient=transient, disable=not console.is_terminal)
        self._task: TaskID | None = None

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()


class StepProgress(_Bar):
    """A bar on stderr that disappears at the end."""

    def __init__(self) -> None:
        super().__init__(Console(stderr=True), TimeElapsedColumn(), transient=True)

    def __enter__(self) -> StepProgress:
        self._bar.start()
        self._task = self._bar.add_task("loading", total=None)
        return self

    def __call__(self, step: str, done: int, total: int) -> None:
        assert self._task is not None, "used as a context manager"
        self._bar.update(self._task, description=escape(step), completed=done, total=total)


class TrainingProgress(_Bar):
    """An observer of a run: a bar on a terminal, one line per epoch in a log."""

    def __init__(self, console: Console) -> None:
        figures = TextColumn("{task.fields[figures]}")
        super().__init__(console, figures, TimeElapsedColumn(), TimeRemainingColumn())
        self._console = console
        self._epochs = 0

    def __enter__(self) -> TrainingProgress:
        self._bar.start()
        return self

    def begin(self, epochs: int, steps: int, finished: int) -> None:
        self._epochs = epochs
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


class StepLines:
    """A line for each step of an export or a quantisation: when it begins or, ``verbose``, when it ends."""

    def __init__(self, console: Console, *, verbose: bool) -> None:
        self._console, self._verbose = console, verbose

    def __call__(self, step: str, seconds: float | None) -> None:
        if (seconds is not None) == self._verbose:
            time = "" if seconds is None else f"  [dim]{seconds:.2f} s[/dim]"
            self._console.print(f"[dim]·[/dim] {step}{time}")
