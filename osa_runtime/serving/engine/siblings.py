"""Messages between a worker and its parent, which passes questions on to the other workers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from osa_runtime.errors import OsaError

Handle = Callable[[str, Any], Awaitable[Any]]


@dataclass(frozen=True)
class Ready:
    """A worker takes requests; ``error`` says why it never will."""

    addresses: dict[str, str]
    error: OsaError | None = None


@dataclass(frozen=True)
class Question:
    """From a worker for all others, and from the parent for one: ``key`` comes back with the answer."""

    key: int
    what: str
    argument: Any = None


@dataclass(frozen=True)
class Answer:
    """``problem`` is what went wrong, ``value`` else what was asked for; from the parent, those of all others."""

    key: int
    value: Any = None
    problem: str | None = None


class Siblings:
    """``unloaded`` are models that were unloaded while another process had this worker's place."""

    def __init__(self, connection: Connection, unloaded: frozenset[str] = frozenset()) -> None:
        self._connection, self.unloaded = connection, unloaded
        self._keys = itertools.count()
        self._waiting: dict[int, asyncio.Future[list[Answer]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def listen(self, handle: Handle, on_lost: Callable[[], None]) -> None:
        """``handle`` answers the others; ``on_lost`` is called when the parent has gone."""
        self._handle, self._on_lost = handle, on_lost
        asyncio.get_running_loop().add_reader(self._connection.fileno(), self._read)

    def send(self, message: Ready | Question | Answer) -> None:
        with contextlib.suppress(OSError):  # the parent has gone; ``_read`` finds out
            self._connection.send(message)

    async def ask(self, what: str, argument: Any = None) -> list[Answer]:
        """The answers of all other workers that are there."""
        question = Question(next(self._keys), what, argument)
        waiting = self._waiting[question.key] = asyncio.get_running_loop().create_future()
        self.send(question)
        try:
            return await waiting
        finally:
            del self._waiting[question.key]

    def _read(self) -> None:
        try:
            message = self._connection.recv()
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(self._connection.fileno())
            for waiting in self._waiting.values():
                waiting.set_result([])
            self._on_lost()
            return
        if isinstance(message, Answer):
            asked = self._waiting.get(message.key)
            if asked is not None and not asked.done():
                asked.set_result(message.value)
            return
        task = asyncio.get_running_loop().create_task(self._answer(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, question: Question) -> None:
        try:
            answer = Answer(question.key, await self._handle(question.what, question.argument))
        except Exception as error:  # noqa: BLE001 - whatever it was, the one who asked must not wait for ever
            answer = Answer(question.key, problem=str(error) or type(error).__name__)
        self.send(answer)
