"""How many connections are open, and how many may be: each holds memory and a file descriptor."""

from __future__ import annotations

import asyncio
from typing import Any

from osa_runtime.serving.refusals import Unavailable

LINGER = 2.0  # seconds that a client who is refused may go on sending
TOLD = 64  # connections beyond the limit that are told so at a time; more are cut off without a word


class Connections:
    """REST and gRPC together. ``open`` are served, ``refused`` beyond the limit and about to end."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.open = 0
        self.refused = 0

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
        return self.refused > TOLD

    def refusal(self) -> Unavailable:
        return Unavailable(f"The server has {self.most} connections open, its limit; try again later.")


def half_close(transport: Any) -> None:
    """Say no more and listen on: closing while the client still sends would reset the connection, and lose what was
    said last."""
    if transport.can_write_eof():
        transport.write_eof()
    asyncio.get_running_loop().call_later(LINGER, transport.close)
