"""One request on its way through the queue, one batch through the model, and their spans.

A request that fails does not affect others in its batch.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from osa_runtime.errors import OsaError
from osa_runtime.runtime.session import check_finite_outputs
from osa_runtime.serving.engine.batch_plan import BatchPlan, Extent
from osa_runtime.serving.engine.messages import Array, InferenceRequest
from osa_runtime.serving.engine.statistics import Phases
from osa_runtime.serving.refusals import BadRequest, Cancelled


class Job:
    """``on_done`` is called once, in the event loop, when ``outputs`` or ``error`` is set.

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
        """Answer, unless it was answered before: a batch may still return a job that has timed out."""
        if self.done:
            return
        self.done = True
        self.error = error or self.error
        self.on_done(self)

    def cancel(self) -> None:
        """The client has left; the job leaves the queue, and its place in a batch if that has not begun."""
        self.finish(Cancelled("The client left before its answer was ready."))


Run = Callable[[dict[str, Array]], dict[str, Array]]


class NonFiniteError(BadRequest, status=422):
    """The model returned NaN or Inf for finite inputs, so it has no answer to them."""


@dataclass(slots=True)
class Outcome:
    """The course of a batch; the answers are in its jobs, except those that are to be run ``again``, apart."""

    started: float
    phases: Phases = field(default_factory=Phases)
    retried: bool = False
    again: list[Job] = field(default_factory=list)


def execute(run: Run, plan: BatchPlan, jobs: Sequence[Job]) -> Outcome:
    """Fill ``outputs`` or ``error`` of every job that need not be run again."""
    outcome = Outcome(time.perf_counter())
    _execute(run, plan, jobs, outcome)
    return outcome


def _execute(run: Run, plan: BatchPlan, jobs: Sequence[Job], outcome: Outcome) -> None:
    """A value that is not finite may have affected the whole batch, and an error may be due to any request in it."""
    try:
        suspects = _run_together(run, plan, jobs, outcome.phases)
    except Exception as error:  # noqa: BLE001 - any error belongs to one request, not to the batch
        if len(jobs) == 1:
            jobs[0].error = error
            return
        outcome.retried = True
        middle = len(jobs) // 2
        for half in (jobs[:middle], jobs[middle:]):
            _execute(run, plan, half, outcome)
        return
    if suspects and len(jobs) == 1:
        _refuse_nonfinite(jobs[0])
    elif suspects:
        outcome.retried = True
        outcome.again += suspects
        others = [job for job in jobs if job not in suspects]
        if others:
            _execute(run, plan, others, outcome)


def _run_together(run: Run, plan: BatchPlan, jobs: Sequence[Job], phases: Phases) -> list[Job]:
    """The jobs whose outputs are not finite."""
    begin = time.perf_counter()
    extents = [job.extent for job in jobs]
    feeds = plan.join([job.feeds for job in jobs], extents)
    joined = time.perf_counter()
    outputs = run(feeds)
    ran = time.perf_counter()
    for job, part in zip(jobs, plan.split(outputs, extents), strict=True):
        job.outputs = part
    suspects = [] if all_finite(outputs) else [job for job in jobs if not all_finite(job.outputs)]
    phases.join += joined - begin
    phases.run += ran - joined
    phases.split += time.perf_counter() - ran
    return suspects


def _refuse_nonfinite(job: Job) -> None:
    """Values that are not finite are an error of the request that caused them, unless it allows them."""
    if job.allow_nonfinite:
        return
    try:
        check_finite_outputs(job.outputs)
    except OsaError as error:
        job.error = NonFiniteError(str(error))


def all_finite(arrays: Mapping[str, Array]) -> bool:
    for array in arrays.values():
        if array.dtype.kind == "f" and not np.logical_and.reduce(np.isfinite(array), axis=None):
            return False
    return True


class Tracing:
    """OpenTelemetry spans, if its API is installed and the process has configured a tracer provider.

    ``active`` is false without a provider; spans then cost nothing.
    """

    def __init__(self) -> None:
        self._tracer: Any = None
        self._propagate: Any = None
        self._status: Any = None
        try:
            trace: Any = importlib.import_module("opentelemetry.trace")
            propagate: Any = importlib.import_module("opentelemetry.propagate")
        except ImportError:
            return
        if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            return  # the API alone, without an SDK behind it
        self._tracer = trace.get_tracer("osa_runtime.serving")
        self._propagate = propagate
        self._status = trace.StatusCode.ERROR

    @property
    def active(self) -> bool:
        return self._tracer is not None

    def record(
        self, model: str, version: str, request: InferenceRequest, job: Job, seconds: float, status: int
    ) -> None:
        """One span from arrival to answer, below the caller's span where its ``traceparent`` came along."""
        if self._tracer is None:
            return
        end = time.time_ns()
        carrier = {"traceparent": str(request.trace)} if request.trace else {}
        span = self._tracer.start_span(
            f"infer {model}",
            context=self._propagate.extract(carrier),
            start_time=end - int(seconds * 1e9),
            attributes={
                "osa.model": model,
                "osa.version": version,
                "osa.rows": job.extent.rows,
                "osa.request_id": request.id,
                "http.response.status_code": status,
            },
        )
        if job.error is not None:
            span.set_status(self._status, str(job.error))
        span.end(end)
