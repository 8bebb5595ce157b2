"""The queue: what runs together, who pays for whose mistakes, limits, deadlines and cancelled requests."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import numpy as np
import pytest

from osa_runtime.errors import RunError
from osa_runtime.interface import Interface, TensorSpec
from osa_runtime.serving.engine.batch_plan import BatchPlan
from osa_runtime.serving.engine.batcher import BRIEF, BRIEF_ALONE, Batcher
from osa_runtime.serving.engine.execution import Job, NonFiniteError
from osa_runtime.serving.engine.statistics import ModelStatistics
from osa_runtime.serving.refusals import Cancelled, Unavailable
from osa_runtime.serving.settings import BatchSettings

INTERFACE = Interface(
    (TensorSpec("x", "float32", ("batch", 2)),),
    (TensorSpec("y", "float32", ("batch", 2)),),
)
PLAN = BatchPlan(INTERFACE)


class Model:
    """Doubles its input. ``gate`` holds a run up until it is opened; rows that hold 13 fail."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.batches: list[list[float]] = []
        self.threads: list[int] = []

    def __call__(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        assert self.gate.wait(30)
        x = arrays["x"]
        self.batches.append(x[:, 0].tolist())
        self.threads.append(threading.get_ident())
        if (x == 13).any():
            raise RunError("thirteen")
        return {"y": np.where(x == 7, np.inf, 2 * x).astype(np.float32)}


class Bench:
    def __init__(self, settings: BatchSettings) -> None:
        self.model = Model()
        self.book = ModelStatistics()
        self.settings = settings
        self.batcher = Batcher("test", self.model, PLAN, settings, self.book)

    def submit(
        self, value: float, rows: int = 1, *, timeout: float = 30, allow: bool = False, alone: bool = False
    ) -> Job:
        feeds = {"x": np.full((rows, 2), value, np.float32)}
        now = time.perf_counter()
        job = Job(feeds, PLAN.extent(feeds), lambda _: None, arrived=now, deadline=now + timeout, allow_nonfinite=allow)
        self.batcher.submit(job, alone=alone)
        return job

    async def close(self) -> None:
        self.model.gate.set()
        await self.batcher.close()


def bench(check: Callable[[Bench], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        made = Bench(BatchSettings(**settings))
        try:
            await check(made)
        finally:
            await made.close()

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never happened")


def test_what_queues_while_the_model_is_busy_runs_together() -> None:
    async def check(made: Bench) -> None:
        made.model.gate.clear()
        jobs = [made.submit(value) for value in range(1, 6)]
        made.model.gate.set()
        await until(lambda: all(job.done for job in jobs))
        assert made.model.batches == [[1], [2, 3, 4, 5]]
        assert [job.outputs["y"].tolist() for job in jobs] == [[[2.0 * v, 2.0 * v]] for v in range(1, 6)]
        assert (made.book.executions, made.book.rows, made.book.success.count) == (2, 5, 5)

    bench(check)


def test_batches_hold_no_more_rows_than_allowed_and_keep_the_order() -> None:
    async def check(made: Bench) -> None:
        made.model.gate.clear()
        jobs = [made.submit(0), *(made.submit(v, rows) for v, rows in ((1, 3), (2, 2), (3, 1), (4, 4)))]
        made.model.gate.set()
        await until(lambda: all(job.done for job in jobs))
        assert made.model.batches == [[0], [1, 1, 1, 3], [2, 2], [4, 4, 4, 4]]

    bench(check, max_batch=4)


def test_a_delay_waits_for_company_and_a_full_batch_does_not_wait() -> None:
    async def check(made: Bench) -> None:
        jobs = [made.submit(1)]
        await asyncio.sleep(0)
        assert made.model.batches == []
        jobs += [made.submit(2)]  # the batch is full
        await until(lambda: all(job.done for job in jobs))
        assert made.model.batches == [[1, 2]]
        alone = made.submit(3)
        await until(lambda: alone.done)

    bench(check, max_batch=2, max_delay=0.2)


def test_only_the_guilty_request_fails() -> None:
    async def check(made: Bench) -> None:
        made.model.gate.clear()
        made.submit(0)
        jobs = [made.submit(value) for value in (1, 13, 2)]
        made.model.gate.set()
        await until(lambda: all(job.done for job in jobs))
        assert [type(job.error) for job in jobs] == [type(None), RunError, type(None)]
        assert jobs[2].outputs["y"].tolist() == [[4, 4]]
        assert made.book.retried_batches == 1

    bench(check)


def test_outputs_that_are_not_finite_touch_nobody_else() -> None:
    async def check(made: Bench) -> None:
        made.model.gate.clear()
        made.submit(0)
        jobs = [made.submit(1), made.submit(7), made.submit(2), made.submit(7, allow=True), made.submit(3)]
        made.model.gate.set()
        await until(lambda: all(job.done for job in jobs))
        assert [type(job.error) for job in jobs] == [type(None), NonFiniteError, *[type(None)] * 3]
        assert not np.isfinite(jobs[3].outputs["y"]).any()
        assert made.book.nonfinite == 1
        assert made.model.batches == [[0], [1, 7, 2, 7, 3], [1, 2, 3], [7], [7]]  # the good ones first, and once

    bench(check)


def test_one_request_that_breaks_a_batch_is_found_by_halves() -> None:
    async def check(made: Bench) -> None:
        made.model.gate.clear()
        made.submit(0)
        jobs = [made.submit(value) for value in (1, 2, 3, 4, 5, 13, 6, 8)]
        made.model.gate.set()
        await until(lambda: all(job.done for job in jobs))
        assert [str(job.error) for job in jobs if job.error] == ["thirteen"]
        assert len(made.model.batches) == 1 + 1 + 2 * 3

    bench(check)


def test_a_full_queue_refuses_at_once() -> None:
    async def check(made: Bench) -> None:
        made.model.gate.clear()
        jobs = [made.submit(value) for value in range(4)]
        with pytest.raises(Unavailable, match="full with 3 requests") as raised:
            made.submit(9)
        assert (raised.value.status, raised.value.retry_after) == (503, 1)
        jobs[2].cancel()
        made.submit(10)  # who has left makes room

    bench(check, max_queue=3)


def test_a_cancelled_request_leaves_the_batch() -> None:
    async def check(made: Bench) -> None:
        made.model.gate.clear()
        jobs = [made.submit(value) for value in (1, 2, 3)]
        jobs[1].cancel()
        assert isinstance(jobs[1].error, Cancelled)
        made.model.gate.set()
        await until(lambda: all(job.done for job in jobs))
        assert made.model.batches == [[1], [3]]

    bench(check)


def test_requests_time_out_while_they_wait_and_while_they_run() -> None:
    async def check(made: Bench) -> None:
        made.model.gate.clear()
        running, waiting = made.submit(1, timeout=0.01), made.submit(2, timeout=0.01)
        await until(lambda: running.done and waiting.done)
        assert all("timeout expired" in str(job.error) for job in (running, waiting))
        patient = made.submit(3)
        made.model.gate.set()
        await until(lambda: patient.done)
        assert made.model.batches == [[1], [3]]
        assert made.book.success.count == 1

    bench(check)


def test_closing_answers_what_is_queued() -> None:
    async def check(made: Bench) -> None:
        made.model.gate.clear()
        jobs = [made.submit(1) for _ in range(50)]
        closing = asyncio.create_task(made.batcher.close())
        await asyncio.sleep(0)
        made.model.gate.set()
        await closing
        assert all(job.done and job.error is None for job in jobs)

    bench(check, max_batch=4)


def test_a_brief_model_runs_in_the_event_loop_with_the_same_answers() -> None:
    async def check(made: Bench) -> None:
        for _ in range(200):  # until its usual time is known
            job = made.submit(1)
            await until(lambda job=job: job.done)  # type: ignore[misc]
        jobs = [made.submit(value) for value in (1, 13, 2)]
        await until(lambda: all(job.done for job in jobs))
        assert [job.error is None for job in jobs] == [True, False, True]
        assert jobs[2].outputs["y"].tolist() == [[4, 4]]

    bench(check)


def test_a_brief_model_answers_at_once_when_nobody_else_can_have_come() -> None:
    async def check(made: Bench) -> None:
        assert not made.submit(1, alone=True).done  # its usual time is not known yet
        for _ in range(200):
            job = made.submit(1)
            await until(lambda job=job: job.done)  # type: ignore[misc]
        first = made.submit(2, alone=True)
        assert (first.done, first.outputs["y"].tolist()) == (True, [[4, 4]])
        guilty = made.submit(13, alone=True)
        assert (guilty.done, str(guilty.error)) == (True, "thirteen")
        deferred, company = made.submit(3), made.submit(4, alone=True)
        assert not deferred.done
        await until(lambda: deferred.done and company.done)
        assert made.model.batches[-1] == [3, 4]
        await made.batcher.close()  # nothing is left that it would wait for

    bench(check)


def test_a_longer_model_runs_in_the_event_loop_only_for_somebody_alone() -> None:
    async def check(made: Bench) -> None:
        made.batcher._usual = (BRIEF + BRIEF_ALONE) / 2
        together = made.submit(1)
        assert not together.done
        await until(lambda: together.done)
        made.batcher._usual = (BRIEF + BRIEF_ALONE) / 2
        assert made.submit(2, alone=True).done
        made.batcher._usual = 2 * BRIEF_ALONE
        long = made.submit(3, alone=True)
        assert not long.done
        await until(lambda: long.done)
        here = threading.get_ident()
        assert [thread == here for thread in made.model.threads] == [False, True, False]

    bench(check)
