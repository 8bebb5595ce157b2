"""Reading large requests in a thread, one at a time, so that nobody waits for them but those who sent them; and how
many bytes of them are in memory at once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from osa_runtime.errors import OsaError
from osa_runtime.serving.refusals import Unavailable

LARGE = 64 << 10  # bytes; what is smaller is read sooner than a thread takes it over
AHEAD = 4  # requests of the largest size that may wait for the thread
AT_ONCE = 2  # requests of the largest size that are in memory

T = TypeVar("T")


class Parsing:
    """``largest`` is the size of the largest request, in bytes."""

    def __init__(self, largest: int) -> None:
        self._most = AHEAD * largest
        self._waiting = 0  # bytes that wait or are being read
        self._room = AT_ONCE * largest  # bytes
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._thread = ThreadPoolExecutor(1, "osa-serve-parsing")

    def submit(self, size: int, read: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """The result of ``read(*arguments)``, which works on ``size`` bytes. Too many at once are refused."""
        if self._waiting + size > self._most:
            raise Unavailable(f"Requests of {self._most} bytes together wait to be read; try again later.")
        self._waiting += size
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def leave(_: Any) -> None:
            self._waiting -= size

        future.add_done_callback(leave)
        # Not run_in_executor: its two futures refer to each other, and keep what was read until the next collection.
        self._thread.submit(_work, loop, future, read, arguments)
        return future

    @contextlib.asynccontextmanager
    async def room(self, size: int) -> AsyncIterator[None]:
        """Wait until a request of ``size`` bytes may be taken in; in the order of their coming."""
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((size, admitted))
        try:
            self._admit()
            await admitted
            yield
        finally:
            if admitted.done() and not admitted.cancelled():
                self._room += size
            self._admit()

    def _admit(self) -> None:
        while self._queue and (self._queue[0][1].done() or self._queue[0][0] <= self._room):
            size, admitted = self._queue.popleft()
            if not admitted.done():
                self._room -= size
                admitted.set_result(None)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def _work(loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], read: Callable[..., T], given: Any) -> None:
    if future.cancelled():
        return
    try:
        settle = functools.partial(_settle, future, read(*given))
    except Exception as error:  # noqa: BLE001 - it is raised where the result is awaited
        if isinstance(error, OsaError):
            error.__traceback__ = None  # its frames hold the request
        settle = functools.partial(_settle, future, None, error)
    with contextlib.suppress(RuntimeError):  # the loop may be closed when the process ends at once
        loop.call_soon_threadsafe(settle)


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None = None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
