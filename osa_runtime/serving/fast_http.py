"""Inference over HTTP without ASGI in between: uvicorn's protocol, which hands inference requests straight over.

A task, a scope, an event and two messages per request cost more than the whole rest of a small inference; measured,
this way takes a quarter of the time. Everything else goes the ordinary way to the ASGI application.
"""

from __future__ import annotations

import asyncio
import http
from typing import Any, NamedTuple

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from osa_runtime.serving.connections import half_close
from osa_runtime.serving.job import Job
from osa_runtime.serving.refusals import BadRequest, Refusal
from osa_runtime.serving.rest_body import body_too_large
from osa_runtime.serving.rest_head import TARGET, RequestHead
from osa_runtime.serving.rest_infer import RestInference
from osa_runtime.serving.rest_response import Headers, write_error

STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in http.HTTPStatus}
UNNAMED = b"HTTP/1.1 %d \r\n"
LONGEST_KNOWN = 4096  # bytes of a head that is remembered


class KnownHead(NamedTuple):
    """The bytes of a head that was parsed and found good, how long the message was, and what the head says."""

    start: bytes
    size: int
    head: RequestHead


class InferenceProtocol(HttpToolsProtocol):
    """One connection. ``_body`` is a list while an inference request is being read and None otherwise."""

    def __init__(self, *args: Any, inference: RestInference, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._inference = inference
        self._connections = inference.engine.connections
        self._limit = inference.engine.settings.limits.body
        self._body: list[bytes] | None = None
        self._size = 0
        self._pending = False  # an inference is under way
        self._job: Job | None = None
        self._served = False  # false for a connection beyond the limit
        self._closing = False
        self._ignoring = False
        self._lingering = False
        self._reading = False  # a request has begun and not ended
        self._piece = b""  # what came last, if a request began with it
        self._known: KnownHead | None = None
        self._patience: asyncio.TimerHandle | None = None
        self._longest = inference.engine.settings.batching.timeout
        self._answered = 0.0  # when, by the clock of the loop

    def connection_made(self, transport: Any) -> None:
        self._served = self._connections.enter()
        super().connection_made(transport)
        if not self._served and self._connections.overrun:
            transport.abort()
        elif not self._served:
            self._refuse(self._connections.refusal())
        else:
            self._answered = self.loop.time()
            self._keep_alive_for(self.timeout_keep_alive)  # whoever says nothing takes no place for ever

    def data_received(self, data: bytes) -> None:
        known = self._known
        if known is not None and len(data) == known.size and data.startswith(known.start) and self._idle():
            # Clients repeat their heads to the letter: what was parsed once means the same again.
            self._infer(known.head, data[len(known.start) :])
            return
        if self._lingering:
            return
        self._piece = b"" if self._reading else data
        super().data_received(data)
        self._piece = b""
        if self._reading and self._patience is None:
            self._patience = self.loop.call_later(self._longest, self._give_up)
        elif not self._reading and self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _idle(self) -> bool:
        """Whether the next byte begins a request that may be answered at once."""
        between = not (self._reading or self._pending or self._closing)
        return between and (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing()

    def _give_up(self) -> None:
        """A client that does not finish its request shall not keep the connection for ever."""
        if not self.transport.is_closing():
            if self._body is not None:
                self._closing = True
                self._reply(408, *write_error(BadRequest(f"The request was not finished within {self._longest} s.")))
            self.transport.close()

    def on_message_begin(self) -> None:
        self._reading = True
        if self._pending:
            # A pipelined request: the answer under way says that the connection closes, and the client repeats it.
            self._closing = self._ignoring = True
            return
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._ignoring:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._ignoring:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._ignoring:
            return
        if not self._takes():
            super().on_headers_complete()
            return
        self._body, self._size = [], 0
        self._closing = self._closing or not self.parser.should_keep_alive()
        if self._announced() > self._limit:
            self._refuse(body_too_large(self._limit))

    def _takes(self) -> bool:
        idle = self.cycle is None or self.cycle.response_complete
        plain = not self.expect_100_continue and not self.parser.should_upgrade()
        return idle and plain and self.parser.get_method() == b"POST" and TARGET.fullmatch(self.url) is not None

    def _announced(self) -> int:
        text = next((value for name, value in self.headers if name == b"content-length"), b"0")
        return int(text)  # the parser has refused whatever is not a number

    def on_body(self, body: bytes) -> None:
        if self._ignoring:
            return
        if self._body is None:
            super().on_body(body)
            return
        self._size += len(body)
        if self._size > self._limit:
            self._refuse(body_too_large(self._limit))
            return
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._reading = False
        if self._ignoring:
            return
        if self._body is None:
            super().on_message_complete()
            return
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body = None
        head = self._inference.open(self.url, self.headers, self._reply)
        if head is not None:
            self._remember(head, body)
            self._infer(head, body)

    def _remember(self, head: RequestHead, body: bytes) -> None:
        """Keep the head if what came last was it, its body as announced, and nothing else."""
        size = len(self._piece) - len(body)
        whole = 0 < size <= LONGEST_KNOWN and self._piece.find(b"\r\n\r\n") == size - 4
        if whole and not self._closing and self._announced() == len(body) and self._piece.endswith(body):
            self._known = KnownHead(self._piece[:size], len(self._piece), head)

    def _infer(self, head: RequestHead, body: bytes) -> None:
        self._pending = True
        job = self._inference.infer(head, body, self._reply, alone=self._connections.open == 1)
        if self._pending:  # otherwise the answer was given at once
            self._job = job

    def _reply(self, status: int, headers: Headers, content: bytes) -> None:
        self._pending, self._job = False, None
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        lines = [STATUS_LINES.get(status) or UNNAMED % status]
        for name, value in headers:
            lines += (name, b": ", value, b"\r\n")
        lines.append(b"content-length: %d\r\n" % len(content))
        lines.append(b"connection: close\r\n\r\n" if self._closing else b"\r\n")
        lines.append(content)
        self.transport.write(b"".join(lines))
        if self._lingering:
            half_close(self.transport)
        elif self._closing:
            self.transport.close()
        else:
            self._answered = self.loop.time()
            if self.timeout_keep_alive_task is None:
                self._keep_alive_for(self.timeout_keep_alive)

    def _keep_alive_for(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        """One timer for many requests: whoever has asked meanwhile gets the rest of the time."""
        rest = self._answered + self.timeout_keep_alive - self.loop.time()
        if self._pending or rest > 0:
            self._keep_alive_for(self.timeout_keep_alive if self._pending else rest)
        else:
            super().timeout_keep_alive_handler()

    def _refuse(self, refusal: Refusal) -> None:
        """Answer at once, whatever the client still sends."""
        self._closing = self._ignoring = self._lingering = True
        self._body = None
        self._reply(refusal.status, *write_error(refusal))

    def shutdown(self) -> None:
        if self._pending or self._body is not None:
            self._closing = True
        else:
            super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.leave(self._served)
        job, self._job = self._job, None
        self._body = None
        if self._patience is not None:
            self._patience.cancel()
        super().connection_lost(exc)
        if job is not None:
            job.cancel()


def protocol_factory(inference: RestInference) -> Any:
    """What uvicorn takes as its HTTP protocol."""

    def create(*args: Any, **kwargs: Any) -> asyncio.Protocol:
        return InferenceProtocol(*args, inference=inference, **kwargs)

    return create
