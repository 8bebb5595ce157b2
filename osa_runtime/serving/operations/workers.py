"""Several processes on one port: a parent that starts, watches, restarts and drains them, and carries their messages.

Each worker is a whole server with a listening socket of its own (SO_REUSEPORT); the kernel distributes connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
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
from osa_runtime.serving.engine.siblings import Answer, Channel
from osa_runtime.serving.engine.statistics import Snapshot, together
from osa_runtime.serving.logs import Log
from osa_runtime.serving.operations.server import Server, bind, own_signals, run_loop, warn_if_open
from osa_runtime.serving.settings import ServerSettings

LIVED = 10.0  # seconds after which a worker that ends is started again at once
LONGEST_WAIT = 30.0  # seconds before a worker that always ends early is tried again
PATIENCE = 5.0  # seconds that a worker has to answer another, and to end after it has drained
SPAWN = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks

OnReady = Callable[[Server], None]


@dataclass(frozen=True)
class LogSettings:
    level: str = "info"
    requests: bool = False


def run_workers(settings: ServerSettings, log: LogSettings, on_ready: OnReady) -> None:
    """Serve with ``settings.workers`` processes until a signal. ``on_ready`` is called in the first of them."""
    run_loop(Workers(settings, log, on_ready).run())


@dataclass(eq=False)
class Worker:
    """A process from the view of its parent. ``latest`` is the last snapshot that it sent.

    ``ready`` has its addresses, or the reason why it could not start.
    """

    number: int
    process: BaseProcess
    channel: Channel
    ready: asyncio.Future[dict[str, str] | OsaError]
    started: float = field(default_factory=time.monotonic)
    restarts: int = 0  # in a row, of workers that ended early
    latest: Snapshot = field(default_factory=Snapshot)


class Workers:
    def __init__(self, settings: ServerSettings, log: LogSettings, on_ready: OnReady) -> None:
        self._settings, self._log_options, self._on_ready = settings, log, on_ready
        self._log = Log(log.level)
        self._workers: dict[int, Worker] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._past = Snapshot()
        self._unloaded: set[str] = set()  # models that a restarted worker does not load
        self._stop = asyncio.Event()

    async def run(self) -> None:
        own_signals(self._stop.set, self._kill)
        with contextlib.ExitStack() as reserved:
            self._reserve(reserved)
            try:
                first = await self._start_first()
                if first is not None:
                    warn_if_open(self._settings, self._log)
                    self._log.info("ready", workers=self._settings.workers, **first)
                    await self._stop.wait()
            finally:
                await self._end()

    def _reserve(self, sockets: contextlib.ExitStack) -> None:
        """Reserve the ports while workers restart, and fail now if another process has them."""
        for name in ("http_port", "grpc_port"):
            port = getattr(self._settings, name)
            if port is not None:
                bind(self._settings.host, port, shared=False).close()
                held = sockets.enter_context(bind(self._settings.host, port, shared=True))
                self._settings = replace(self._settings, **{name: held.getsockname()[1]})

    async def _start_first(self) -> dict[str, str] | None:
        """Start the workers, the first one alone: a problem with the models is reported once. None after a signal."""
        addresses: dict[str, str] = {}
        for number in range(self._settings.workers):
            worker = self._start(number)
            stopped = asyncio.ensure_future(self._stop.wait())
            await asyncio.wait((worker.ready, stopped), return_when=asyncio.FIRST_COMPLETED)
            stopped.cancel()
            if not worker.ready.done():
                return None
            found = worker.ready.result()
            if isinstance(found, OsaError):
                raise found
            addresses = found
        self._workers[0].channel.tell("announce")
        return addresses

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
        worker = Worker(number, process, Channel(mine), loop.create_future())
        self._workers[number] = worker
        worker.channel.listen(functools.partial(self._on_question, worker))
        loop.add_reader(process.sentinel, self._ended, worker)
        return worker

    async def _on_question(self, worker: Worker, what: str, argument: Any) -> list[Answer] | None:
        if what != "ready":
            return await self._ask_others(worker, what, argument)
        if not worker.ready.done():
            worker.ready.set_result(argument)
        return None

    async def _ask_others(self, asking: Worker, what: str, argument: Any) -> list[Answer]:
        if what == "unload":
            self._unloaded.add(argument)
        elif what == "load":
            self._unloaded.discard(argument)
        figures = what == "snapshot"
        others = [w for w in self._workers.values() if w is not asking and w.process.is_alive()]
        # A model is loaded or unloaded in those that are still starting, too.
        others = [w for w in others if w.ready.done() or not figures]
        # Loading a model may take long; figures may not.
        limit = PATIENCE if figures else None
        answers = list(await asyncio.gather(*(self._ask(w, what, argument, limit) for w in others)))
        if figures:
            asking.latest = argument
            for worker, answer in zip(others, answers, strict=True):
                worker.latest = answer.value or worker.latest
            answers.append(Answer(-1, self._past))
        return answers

    async def _ask(self, worker: Worker, what: str, argument: Any, limit: float | None) -> Answer:
        await worker.ready
        try:
            return await asyncio.wait_for(worker.channel.ask(what, argument), limit)
        except TimeoutError:
            return Answer(-1, problem=f"worker {worker.number} does not answer")

    def _ended(self, worker: Worker) -> None:
        asyncio.get_running_loop().remove_reader(worker.process.sentinel)
        worker.channel.close()
        worker.process.join()
        self._past = together(self._past, worker.latest.past())
        self._spawn(self._follow(worker))

    async def _follow(self, ended: Worker) -> None:
        """Start a worker again that had been ready, now or before."""
        await asyncio.sleep(0)  # its last messages are being read
        code = ended.process.exitcode
        if not ended.ready.done():
            ended.ready.set_result(RunError(f"A worker ended with {code} before it was ready; its log says why."))
        was_ready = not isinstance(ended.ready.result(), OsaError)
        if not self._stop.is_set() and (was_ready or ended.restarts):
            self._log.error("worker ended", worker=ended.number, code=code)
            await self._restart(ended)

    async def _restart(self, old: Worker) -> None:
        early = time.monotonic() - old.started < LIVED
        restarts = old.restarts + 1 if early else 0
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stop.wait(), min(LONGEST_WAIT, 0.1 * 2**restarts) if restarts else 0.0)
        if not self._stop.is_set():
            new = self._start(old.number)
            new.restarts = max(1, restarts)
            if not isinstance(await new.ready, OsaError):
                self._log.info("worker started again", worker=new.number, pid=new.process.pid)

    async def _end(self) -> None:
        """Let every worker finish its requests; one that does not is killed."""
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
    log: LogSettings,
    on_ready: OnReady,
    connection: Connection,
    unloaded: frozenset[str],
) -> None:
    """The life of a worker, in its own process."""
    # Ctrl-C reaches the whole group; workers stop when the parent tells them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    siblings = Channel(connection)

    async def main() -> int:
        own = Log(log.level, requests=log.requests, worker=number)
        try:
            await Server(settings, own, on_ready, siblings, unloaded).run()
        except OsaError as error:
            siblings.tell("ready", error)
            return 1
        return 0

    sys.exit(run_loop(main()))
