"""Limits on clients: the number of open connections, and the bytes of large requests of both transports.

A large request takes room before its body is read, or before a received message is parsed, and keeps it until
it is answered; one thread reads them, and writes large answers. Small requests take none of it and never wait for
large ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from osa_runtime.errors import OsaError
from osa_runtime.serving.engine.messages import InferenceRequest, InferenceResponse
from osa_runtime.serving.refusals import TooSlow, Unavailable

LINGER = 2.0  # seconds for which a refused client may go on sending
SWEEP = 0.25  # seconds between checks for expired connections
# Connections beyond the limit: probes are answered, other requests get an error; a new one closes the oldest.
MAX_REFUSED = 64
UNUSED = 1.0  # seconds after which an idle connection is closed if its place is needed


class Sweepable(Protocol):
    @property
    def idle_since(self) -> float | None: ...
    def sweep(self, now: float) -> None: ...
    def drop(self) -> None: ...


class Connections:
    """REST and gRPC together: ``open`` connections are served, ``refused`` ones are about to be closed."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.open = 0
        self.refused = 0
        self._places: dict[Sweepable, bool] = {}  # of REST, oldest first; whether it is served
        self._timer: asyncio.TimerHandle | None = None

    def enter(self) -> bool:
        """Count a new connection; returns whether it is served. Call ``leave`` at its end in both cases."""
        served = self.open < self.most
        if served:
            self.open += 1
        else:
            self.refused += 1
        return served

    def leave(self, served: bool) -> None:
        if served:
            self.open -= 1
        else:
            self.refused -= 1

    @property
    def overrun(self) -> bool:
        return self.refused > MAX_REFUSED

    def refusal(self) -> Unavailable:
        return Unavailable(f"The server has {self.most} connections open, its limit; try again later.")

    def add(self, connection: Sweepable) -> bool:
        """``enter`` for a connection that can be dropped when its place is needed."""
        if self.open >= self.most:
            self._free_place()
        served = self.enter()
        self._places[connection] = served
        if not served and self.overrun:
            self._end(next(other for other, has_place in self._places.items() if not has_place))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SWEEP, self._sweep)
        return served

    def discard(self, connection: Sweepable) -> None:
        served = self._places.pop(connection, None)
        if served is not None:
            self.leave(served)

    def _free_place(self) -> None:
        """Close the connection that has been idle for longest."""
        idle = [(c.idle_since, c) for c, served in self._places.items() if served and c.idle_since is not None]
        since, connection = min(idle, key=lambda pair: pair[0], default=(0.0, None))
        if connection is not None and asyncio.get_running_loop().time() - since > UNUSED:
            self._end(connection)

    def _end(self, connection: Sweepable) -> None:
        connection.drop()
        self.discard(connection)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        for connection in tuple(self._places):
            connection.sweep(loop.time())
        self._timer = loop.call_later(SWEEP, self._sweep) if self._places else None


LARGE = 64 << 10  # bytes; reading less is faster than handing it to a thread
AT_ONCE = 2  # requests of the largest size that are in memory
AHEAD = 2  # requests of the largest size that have arrived and wait for room
PATIENCE = 0.5  # seconds of waiting after which the minimum speed applies to requests that have room
RATE = 1 << 20  # minimum speed of a body while others wait for its room, bytes per second

T = TypeVar("T")


class Place:
    """The room of one request."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._since = 0.0
        self._received: Callable[[], int] | None = None  # while the body is coming
        self._limit: asyncio.Timeout | None = None

    @contextlib.asynccontextmanager
    async def receiving(self, received: Callable[[], int]) -> AsyncIterator[None]:
        """Track the arrival of the body; ``received`` is its number of bytes so far."""
        self._received, self._since = received, asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(None) as self._limit:
                yield
        except TimeoutError:
            raise TooSlow(
                f"The body came at less than {RATE} bytes per second while others waited; send it faster."
            ) from None
        finally:
            self._received = self._limit = None

    def hurry(self, now: float) -> None:
        """End it if it is so slow that others wait for its room."""
        if self._received and self._limit and now - self._since > PATIENCE + self._received() / RATE:
            self._limit.reschedule(now)


class LargeRequests:
    """``largest`` is the size of the largest request, in bytes."""

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._free = AT_ONCE * largest
        self._held = 0  # bytes that have arrived and wait for room
        self._waiting: deque[Place] = deque()
        self._inside: set[Place] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._thread = ThreadPoolExecutor(1, "osa-serve-parsing")

    @contextlib.asynccontextmanager
    async def room(self, size: int, held: int = 0) -> AsyncIterator[Place]:
        """Wait, in the order of arrival, until there is room for a request of ``size`` bytes.

        ``held`` bytes of it are in memory already; too many of those are refused.
        """
        if held and self._held + held > AHEAD * self._largest:
            raise Unavailable(f"Requests of {self._held} bytes together wait to be read; try again later.")
        place = Place(size)
        self._waiting.append(place)
        self._held += held
        try:
            self._admit()
            try:
                await place.admitted
            finally:
                self._held -= held
            yield place
        finally:
            place.admitted.cancel()  # where it still waits
            if place in self._inside:
                self._inside.remove(place)
                self._free += size
            self._admit()

    def _admit(self) -> None:
        while self._waiting and (self._waiting[0].admitted.done() or self._waiting[0].size <= self._free):
            place = self._waiting.popleft()
            if not place.admitted.done():
                self._free -= place.size
                self._inside.add(place)
                place.admitted.set_result(None)
        if self._waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._hurry)

    def _hurry(self) -> None:
        self._timer = None
        for place in self._inside:
            place.hurry(asyncio.get_running_loop().time())
        self._admit()

    async def write(self, write: Callable[..., T], request: InferenceRequest, answer: InferenceResponse) -> T:
        """``write(request, answer)``, which may take long for many rows: classes are found and written one by one."""
        size = sum(array.nbytes for array in answer.outputs.values())
        return write(request, answer) if size <= LARGE else await self.submit(write, request, answer)

    def submit(self, read: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """The result of ``read(*arguments)``, from the thread."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        # Not run_in_executor: its two futures refer to each other, and keep what was read until the next collection.
        self._thread.submit(_work, loop, future, read, arguments)
        return future

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
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
