"""Messages between a worker and its parent, which passes questions on to the other workers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

Handle = Callable[[str, Any], Awaitable[Any]]


@dataclass(frozen=True)
class Question:
    """A question to the other process; its answer has the same ``key``."""

    key: int
    what: str
    argument: Any = None


@dataclass(frozen=True)
class Answer:
    """The value of an answer, or the ``problem`` that prevented it."""

    key: int
    value: Any = None
    problem: str | None = None


class Channel:
    """One end of a pipe between two processes, which both ask and answer."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._keys = itertools.count()
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._lost = False

    def listen(self, handle: Handle, on_lost: Callable[[], None] = lambda: None) -> None:
        """``handle`` answers the other end; ``on_lost`` is called when it is gone."""
        self._handle, self._on_lost = handle, on_lost
        asyncio.get_running_loop().add_reader(self._connection.fileno(), self._read)

    def tell(self, what: str, argument: Any = None) -> None:
        self._send(Question(next(self._keys), what, argument))

    async def ask(self, what: str, argument: Any = None) -> Answer:
        question = Question(next(self._keys), what, argument)
        waiting = self._waiting[question.key] = asyncio.get_running_loop().create_future()
        self._send(question)
        if self._lost:
            self._give_up(waiting)
        try:
            return await waiting
        finally:
            del self._waiting[question.key]

    def close(self) -> None:
        """Read the last messages of an end that is gone, and fail every question that still waits."""
        while not self._lost and self._connection.poll():
            self._read()
        if not self._lost:
            self._lose()
        self._connection.close()

    def _send(self, message: Question | Answer) -> None:
        with contextlib.suppress(OSError):  # the other end is gone; ``_read`` notices it
            self._connection.send(message)

    def _read(self) -> None:
        try:
            message = self._connection.recv()
        except (EOFError, OSError):
            self._lose()
            return
        if isinstance(message, Question):
            task = asyncio.get_running_loop().create_task(self._answer(message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif (waiting := self._waiting.get(message.key)) is not None and not waiting.done():
            waiting.set_result(message)

    def _lose(self) -> None:
        self._lost = True
        asyncio.get_running_loop().remove_reader(self._connection.fileno())
        for waiting in self._waiting.values():
            self._give_up(waiting)
        self._on_lost()

    def _give_up(self, waiting: asyncio.Future[Answer]) -> None:
        if not waiting.done():
            waiting.set_result(Answer(-1, problem="the process has ended"))

    async def _answer(self, question: Question) -> None:
        try:
            answer = Answer(question.key, await self._handle(question.what, question.argument))
        except Exception as error:  # noqa: BLE001 - every question needs an answer, or its sender waits forever
            answer = Answer(question.key, problem=str(error) or type(error).__name__)
        self._send(answer)
