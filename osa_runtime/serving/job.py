"""One request on its way through the queue."""

from __future__ import annotations

from collections.abc import Callable

from osa_runtime.serving.batch_plan import Extent
from osa_runtime.serving.messages import Array
from osa_runtime.serving.refusals import Cancelled


class Job:
    """``on_done`` is called once, in the event loop, when ``outputs`` or ``error`` is there.

    Times are seconds of ``time.perf_counter``.
    """

    __slots__ = ("allow_nonfinite", "arrived", "deadline", "done", "error", "extent", "feeds", "on_done", "outputs")

    def __init__(
        self,
        feeds: dict[str, Array],
        extent: Extent,
        on_done: Callable[[Job], None],
        *,
        arrived: float,
        deadline: float,
        allow_nonfinite: bool = False,
    ) -> None:
        self.feeds = feeds
        self.extent = extent
        self.on_done = on_done
        self.arrived = arrived
        self.deadline = deadline
        self.allow_nonfinite = allow_nonfinite
        self.outputs: dict[str, Array] = {}
        self.error: Exception | None = None
        self.done = False

    def finish(self, error: Exception | None = None) -> None:
        """Answer, unless it was answered before: a job that timed out may still come out of a batch."""
        if self.done:
            return
        self.done = True
        self.error = error or self.error
        self.on_done(self)

    def cancel(self) -> None:
        """The client has left; the job leaves the queue, and its place in a batch if that has not begun."""
        self.finish(Cancelled("The client left before its answer was ready."))
