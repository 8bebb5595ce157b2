"""One batch through the model, so that no request suffers for another that shares its batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from osa_runtime.errors import InputError, OsaError, RunError
from osa_runtime.runtime.input_checks import describe_nonfinite
from osa_runtime.runtime.session import check_finite_outputs
from osa_runtime.serving.batch_plan import BatchPlan
from osa_runtime.serving.job import Job
from osa_runtime.serving.messages import Array
from osa_runtime.serving.statistics import Phases

Run = Callable[[dict[str, Array]], dict[str, Array]]


class NonFiniteError(RunError):
    """The model gave NaN or Inf for finite inputs."""


@dataclass(slots=True)
class Outcome:
    """What happened to a batch; the answers are in its jobs."""

    started: float
    phases: Phases = field(default_factory=Phases)
    retried: bool = False


def execute(run: Run, plan: BatchPlan, jobs: Sequence[Job]) -> Outcome:
    """Fill ``outputs`` or ``error`` of every job."""
    outcome = Outcome(time.perf_counter())
    try:
        finite = _run_together(run, plan, jobs, outcome.phases)
    except Exception as error:  # noqa: BLE001 - whatever it was, it belongs to one request, not to the batch
        if len(jobs) == 1:
            jobs[0].error = error
            return outcome
        finite = False
    if not finite and len(jobs) > 1:
        outcome.retried = True
        for job in jobs:
            _run_alone(run, plan, job, outcome.phases)
    elif not finite:
        _blame(jobs[0])
    return outcome


def _run_together(run: Run, plan: BatchPlan, jobs: Sequence[Job], phases: Phases) -> bool:
    """Whether all inputs and outputs were finite."""
    begin = time.perf_counter()
    extents = [job.extent for job in jobs]
    feeds = plan.join([job.feeds for job in jobs], extents)
    joined = time.perf_counter()
    outputs = run(feeds)
    ran = time.perf_counter()
    for job, part in zip(jobs, plan.split(outputs, extents), strict=True):
        job.outputs = part
    finite = _all_finite(outputs) and (len(jobs) == 1 or _all_finite(feeds))
    phases.join += joined - begin
    phases.run += ran - joined
    phases.split += time.perf_counter() - ran
    return finite


def _run_alone(run: Run, plan: BatchPlan, job: Job, phases: Phases) -> None:
    job.outputs = {}
    try:
        if not _run_together(run, plan, [job], phases):
            _blame(job)
    except Exception as error:  # noqa: BLE001 - it becomes this request's answer
        job.error = error


def _blame(job: Job) -> None:
    """Values that are not finite are an error of the request that holds or caused them, unless it allows them."""
    if job.allow_nonfinite:
        return
    for name, array in job.feeds.items():
        broken = describe_nonfinite(array)
        if broken:
            job.error = InputError(f"Input {name} holds {broken}; expected finite values only.")
            return
    try:
        check_finite_outputs(job.outputs)
    except OsaError as error:
        job.error = NonFiniteError(str(error))


def _all_finite(arrays: Mapping[str, Array]) -> bool:
    for array in arrays.values():
        if array.dtype.kind == "f" and not np.logical_and.reduce(np.isfinite(array), axis=None):
            return False
    return True
