"""Several processes on one port: a parent that starts, watches, restarts and drains them, and carries their messages.

Each worker is a whole server with a listening socket of its own (SO_REUSEPORT); the kernel deals connections out.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from osa_runtime.errors import OsaError, RunError
from osa_runtime.serving.engine.siblings import Answer, Question, Ready, Siblings
from osa_runtime.serving.engine.statistics import Snapshot
from osa_runtime.serving.logs import Log
from osa_runtime.serving.operations.server import Server, bind, own_signals, run_loop, warn_if_open
from osa_runtime.serving.settings import ServerSettings

LIVED = 10.0  # seconds after which a worker that ends is started again at once
LONGEST_WAIT = 30.0  # seconds before a worker that always ends early is tried again
PATIENCE = 5.0  # seconds that a worker has to answer another, and to end after it has drained
SPAWN = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks

OnReady = Callable[[Server], None]


@dataclass(frozen=True)
class LogOptions:
    level: str = "info"
    requests: bool = False


def run_workers(settings: ServerSettings, log: LogOptions, on_ready: OnReady) -> None:
    """Serve with ``settings.workers`` processes until a signal. ``on_ready`` is called in the first of them."""
    run_loop(Workers(settings, log, on_ready).run())


@dataclass(eq=False)
class Worker:
    """A process from the view of its parent. ``latest`` is the last snapshot that it gave."""

    number: int
    process: BaseProcess
    connection: Connection
    ready: asyncio.Future[Ready]
    started: float = field(default_factory=time.monotonic)
    restarts: int = 0  # in a row, of workers that ended early
    latest: Snapshot = field(default_factory=Snapshot)

    def send(self, message: Question | Answer) -> None:
        with contextlib.suppress(OSError):  # it has just ended, which its sentinel says
            self.connection.send(message)


class Workers:
    def __init__(self, settings: ServerSettings, log: LogOptions, on_ready: OnReady) -> None:
        self._settings, self._log_options, self._on_ready = settings, log, on_ready
        self._log = Log(log.level)
        self._workers: dict[int, Worker] = {}
        self._waiting: dict[tuple[int, int], asyncio.Future[Answer]] = {}  # by worker and key
        self._tasks: set[asyncio.Task[None]] = set()
        self._past = Snapshot()
        self._unloaded: set[str] = set()  # models that a worker which is started again leaves alone
        self._stop = asyncio.Event()
        self._keys = 0

    async def run(self) -> None:
        own_signals(self._stop.set, self._kill)
        with contextlib.ExitStack() as reserved:
            self._reserve(reserved)
            try:
                first = await self._start_first()
                if first is not None:
                    warn_if_open(self._settings, self._log)
                    self._log.info("ready", workers=self._settings.workers, **first.addresses)
                    await self._stop.wait()
            finally:
                await self._end()

    def _reserve(self, sockets: contextlib.ExitStack) -> None:
        """Hold the ports while workers come and go, and find out now whether someone else has them."""
        for name in ("http_port", "grpc_port"):
            port = getattr(self._settings, name)
            if port is not None:
                bind(self._settings.host, port, shared=False).close()
                held = sockets.enter_context(bind(self._settings.host, port, shared=True))
                self._settings = replace(self._settings, **{name: held.getsockname()[1]})

    async def _start_first(self) -> Ready | None:
        """All workers, the first one alone: what is wrong with the models is said once. None after a signal."""
        for number in range(self._settings.workers):
            worker = self._start(number)
            stopped = asyncio.ensure_future(self._stop.wait())
            await asyncio.wait((worker.ready, stopped), return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            if not worker.ready.done():
                return None
            error = worker.ready.result().error
            if error is not None:
                raise error
        first = self._workers[0]
        first.send(Question(-1, "announce"))
        return first.ready.result()

    def _start(self, number: int) -> Worker:
        loop = asyncio.get_running_loop()
        mine, theirs = SPAWN.Pipe()
        process = SPAWN.Process(
            target=work,
            args=(self._settings, number, self._log_options, self._on_ready, theirs, frozenset(self._unloaded)),
            name=f"osa serve worker {number}",
        )
        process.start()
        theirs.close()
        worker = Worker(number, process, mine, loop.create_future())
        self._workers[number] = worker
        loop.add_reader(mine.fileno(), self._read, worker)
        loop.add_reader(process.sentinel, self._ended, worker)
        return worker

    def _read(self, worker: Worker) -> bool:
        """Whether there was a message, not the end of them."""
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(worker.connection.fileno())
            return False
        if isinstance(message, Ready):
            if not worker.ready.done():
                worker.ready.set_result(message)
        elif isinstance(message, Question):
            self._spawn(self._relay(worker, message))
        elif (waiting := self._waiting.get((worker.number, message.key))) is not None and not waiting.done():
            waiting.set_result(message)
        return True

    async def _relay(self, asking: Worker, question: Question) -> None:
        """Put the question of one worker to all others."""
        if question.what == "unload":
            self._unloaded.add(question.argument)
        elif question.what == "load":
            self._unloaded.discard(question.argument)
        figures = question.what == "snapshot"
        others = [w for w in self._workers.values() if w is not asking and w.process.is_alive()]
        # A model is loaded or unloaded in those that are still starting, too.
        others = [w for w in others if w.ready.done() or not figures]
        answers = list(await asyncio.gather(*(self._ask(worker, question) for worker in others)))
        if figures:
            asking.latest = question.argument
            for worker, answer in zip(others, answers, strict=True):
                worker.latest = answer.value or worker.latest
            answers.append(Answer(question.key, self._past))
        asking.send(Answer(question.key, answers))

    async def _ask(self, worker: Worker, question: Question) -> Answer:
        await worker.ready
        self._keys += 1
        key = self._keys
        waiting = self._waiting[worker.number, key] = asyncio.get_running_loop().create_future()
        worker.send(Question(key, question.what, question.argument))
        try:
            # Loading a model may take long; figures are wanted soon.
            limit = PATIENCE if question.what == "snapshot" else None
            return await asyncio.wait_for(waiting, limit)
        except TimeoutError:
            return Answer(key, problem=f"worker {worker.number} does not answer")
        finally:
            del self._waiting[worker.number, key]

    def _ended(self, worker: Worker) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(worker.process.sentinel)
        loop.remove_reader(worker.connection.fileno())
        while worker.connection.poll() and self._read(worker):  # its last words
            pass
        worker.connection.close()
        worker.process.join()
        self._past = self._past.plus(worker.latest.past())
        for (number, key), waiting in self._waiting.items():
            if number == worker.number and not waiting.done():
                waiting.set_result(Answer(key, problem=f"worker {number} has ended"))
        was_ready = worker.ready.done() and worker.ready.result().error is None
        if not worker.ready.done():
            ended = RunError(f"A worker ended with {worker.process.exitcode} before it was ready; its log says why.")
            worker.ready.set_result(Ready({}, ended))
        if not self._stop.is_set() and (was_ready or worker.restarts):
            self._log.error("worker ended", worker=worker.number, code=worker.process.exitcode)
            self._spawn(self._restart(worker))

    async def _restart(self, old: Worker) -> None:
        early = time.monotonic() - old.started < LIVED
        restarts = old.restarts + 1 if early else 0
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stop.wait(), min(LONGEST_WAIT, 0.1 * 2**restarts) if restarts else 0.0)
        if not self._stop.is_set():
            new = self._start(old.number)
            new.restarts = max(1, restarts)
            if (await new.ready).error is None:
                self._log.info("worker started again", worker=new.number, pid=new.process.pid)

    async def _end(self) -> None:
        """Let every worker finish what it has taken; those that do not are killed."""
        self._stop.set()
        for worker in self._workers.values():
            if worker.process.is_alive():
                worker.process.terminate()
        deadline = time.monotonic() + self._settings.drain + PATIENCE
        while any(w.process.is_alive() for w in self._workers.values()) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        for worker in self._workers.values():
            if worker.process.is_alive():
                self._log.error("worker killed: it did not end in time", worker=worker.number)
                worker.process.kill()
        self._log.info("stopped")

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _kill(self) -> None:
        for worker in self._workers.values():
            worker.process.kill()


def work(
    settings: ServerSettings,
    number: int,
    log: LogOptions,
    on_ready: OnReady,
    connection: Connection,
    unloaded: frozenset[str],
) -> None:
    """The life of a worker, in its own process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent says when to stop
    siblings = Siblings(connection, unloaded)

    async def main() -> int:
        own = Log(log.level, requests=log.requests, worker=number)
        try:
            await Server(settings, own, on_ready, siblings).run()
        except OsaError as error:
            siblings.send(Ready({}, error))
            return 1
        return 0

    sys.exit(run_loop(main()))
