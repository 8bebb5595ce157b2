"""The queue of one model, and the thread that runs it.

While the thread runs a batch, requests queue; when it is free, it takes the whole queue: requests do not wait for a
batch to fill, and batches grow with the load. ``max_delay`` adds a wait for fuller ones. Everything but the run itself
happens in the event loop, so that nothing here needs a lock. A run that takes hardly more time than the way to the
thread and back happens in the event loop, too, and so does a longer one while there is only one client.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections import deque

from osa_runtime.serving.engine.batch_plan import BatchPlan, Extent
from osa_runtime.serving.engine.execution import Job, NonFiniteError, Outcome, Run, execute
from osa_runtime.serving.engine.statistics import ModelStatistics
from osa_runtime.serving.refusals import Unavailable
from osa_runtime.serving.settings import BatchSettings

SWEEP = 0.05  # seconds between checks for requests that have waited too long
BRIEF = 0.001  # seconds; a run that takes less does not go to the thread; under load batches grow, and it does
BRIEF_ALONE = 0.005  # the same while no other client would have to wait
STEP = 0.05  # by which the usual time of a run follows the last one


class Batcher:
    def __init__(self, name: str, run: Run, plan: BatchPlan, settings: BatchSettings, book: ModelStatistics) -> None:
        self._run, self._plan, self._settings, self._book = run, plan, settings, book
        self._usual = float("inf")  # seconds that a run takes
        self._max_rows = settings.max_batch if plan.can_batch else 1
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []
        self._delay: asyncio.TimerHandle | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._inbox: queue.SimpleQueue[list[Job] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"osa-serve-{name}", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    def submit(self, job: Job, *, alone: bool = False) -> None:
        if len(self._waiting) >= self._settings.max_queue:
            self._drop_finished()
            if len(self._waiting) >= self._settings.max_queue:
                limit = self._settings.max_queue
                raise Unavailable(f"The queue of this model is full with {limit} requests; try again later.")
        self._waiting.append(job)
        self._idle.clear()
        if self._sweep is None:
            self._sweep = self._loop.call_later(SWEEP, self._expire)
        if not self._running:
            self._start_or_wait(alone)

    def _start_or_wait(self, alone: bool = False) -> None:
        """Begin the next batch: at once, or after the delay if one is set and the batch is not full."""
        if not self._waiting:
            self._idle.set()
            return
        if self._settings.max_delay > 0:
            ripe = self._waiting[0].arrived + self._settings.max_delay
            now = time.perf_counter()
            if now < ripe and sum(job.extent.rows for job in self._waiting) < self._max_rows:
                if self._delay is None:
                    self._delay = self._loop.call_later(ripe - now, self._ripened)
                return
        self._start(alone)

    def _ripened(self) -> None:
        self._delay = None
        if not self._running:
            self._start_or_wait()

    def _start(self, alone: bool) -> None:
        if self._usual < (BRIEF_ALONE if alone else BRIEF) and self._plan.has_one_shape:
            self._running = [self._waiting[0]]
            if alone:
                self._run_here()
            else:
                self._loop.call_soon(self._run_here)  # after the requests that have arrived by now are queued
            return
        self._running = self._take()
        if self._running:
            self._inbox.put(self._running)
        else:
            self._idle.set()

    def _run_here(self) -> None:
        self._running = self._take()
        if self._running:
            self._finish(self._running, execute(self._run, self._plan, self._running))
        else:
            self._idle.set()

    def _take(self) -> list[Job]:
        """The oldest request and those behind it that fit its batch; the others keep their places."""
        now = time.perf_counter()
        if len(self._waiting) == 1 and not self._waiting[0].done and now < self._waiting[0].deadline:
            return [self._waiting.popleft()]
        batch: list[Job] = []
        passed: list[Job] = []
        rows, short, long = 0, None, None
        while self._waiting and rows < self._max_rows:
            job = self._waiting.popleft()
            if job.done:
                continue
            if now >= job.deadline:
                job.finish(_expired())
                continue
            extent = job.extent
            if short is None or long is None:
                short = long = extent
            elif rows + extent.rows > self._max_rows or not (extent.fits(short) and extent.fits(long)):
                passed.append(job)
                continue
            batch.append(job)
            rows += extent.rows
            short, long = min(short, extent, key=_length), max(long, extent, key=_length)
        self._waiting.extendleft(reversed(passed))
        return batch

    def _work(self) -> None:
        while (jobs := self._inbox.get()) is not None:
            outcome = execute(self._run, self._plan, jobs)
            with contextlib.suppress(RuntimeError):  # the loop may be closed when the process ends at once
                self._loop.call_soon_threadsafe(self._finish, jobs, outcome)

    def _finish(self, jobs: list[Job], outcome: Outcome) -> None:
        self._running = []
        self._remember(outcome.phases.run)
        for job in outcome.again:
            job.extent = job.extent._replace(apart=True)
            self._waiting.append(job)
        self._start_or_wait()  # first, so that the model works while the answers are written
        if outcome.again:
            jobs = [job for job in jobs if job not in outcome.again]
        self._book.add_batch(sum([job.extent.rows for job in jobs]), outcome.phases)
        self._book.retried_batches += outcome.retried
        now = time.perf_counter()
        for job in jobs:
            if job.error is None and not job.done:
                self._book.add_success(now - job.arrived, outcome.started - job.arrived, outcome.phases)
            self._book.nonfinite += isinstance(job.error, NonFiniteError)
            job.finish()

    def _remember(self, seconds: float) -> None:
        """Follow the median: a single slow run says little about the next one."""
        if self._usual == float("inf"):
            self._usual = seconds
        self._usual *= 1 + STEP if seconds > self._usual else 1 - STEP

    def _expire(self) -> None:
        now = time.perf_counter()
        for job in (*self._waiting, *self._running):
            if now >= job.deadline:
                job.finish(_expired())
        self._drop_finished()
        busy = self._waiting or self._running
        self._sweep = self._loop.call_later(SWEEP, self._expire) if busy else None

    def _drop_finished(self) -> None:
        if any(job.done for job in self._waiting):
            self._waiting = deque(job for job in self._waiting if not job.done)

    async def close(self) -> None:
        """Answer what is queued, then stop the thread."""
        await self._idle.wait()
        if self._sweep is not None:
            self._sweep.cancel()
        self._inbox.put(None)
        while self._thread.is_alive():
            await asyncio.sleep(0.005)


def _length(extent: Extent) -> int:
    return extent.length


def _expired() -> Unavailable:
    return Unavailable("Request timeout expired: the model did not get to it in time; try again later.")
