"""The number of open connections and its limit: each holds memory and a file descriptor."""

from __future__ import annotations

import asyncio
from typing import Protocol

from osa_runtime.serving.refusals import Unavailable

LINGER = 2.0  # seconds that a client who is refused may go on sending
SWEEP = 0.25  # seconds between two looks for connections whose time is over
MAX_REFUSED = (
    64  # connections beyond the limit, where probes are answered and others told so; a new one ends the oldest
)
UNUSED = 1.0  # seconds after which a connection that asks nothing gives its place to one that may


class Sweepable(Protocol):
    @property
    def idle_since(self) -> float | None: ...
    def sweep(self, now: float) -> None: ...
    def drop(self) -> None: ...


class Connections:
    """REST and gRPC together. ``open`` are served, ``refused`` beyond the limit and about to end."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.open = 0
        self.refused = 0
        self._places: dict[Sweepable, bool] = {}  # of REST, oldest first; whether it is served
        self._timer: asyncio.TimerHandle | None = None

    def enter(self) -> bool:
        """Whether a new connection is served. ``leave`` when it has ended, either way."""
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
        """``enter`` for a connection that is looked after: it is told when it must go."""
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
        """Of those that ask nothing, the one that has asked nothing for longest gives its place up."""
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
