"""Inference over HTTP without ASGI in between: uvicorn's protocol, which hands inference requests straight over.

A task, a scope, an event and two messages per request cost more than the whole rest of a small inference; measured,
this way takes a quarter of the time. Everything else goes the ordinary way to the ASGI application.
"""

from __future__ import annotations

import asyncio
import http
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from osa_runtime.serving.job import Job
from osa_runtime.serving.refusals import BadRequest
from osa_runtime.serving.rest_body import body_too_large
from osa_runtime.serving.rest_infer import TARGET, RestInference
from osa_runtime.serving.rest_response import Headers, write_error

STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in http.HTTPStatus}
UNNAMED = b"HTTP/1.1 %d \r\n"
LINGER = 2.0  # seconds that a client whose body is refused may go on sending


class InferenceProtocol(HttpToolsProtocol):
    """One connection. ``_body`` is a list while an inference request is being read and None otherwise."""

    def __init__(self, *args: Any, inference: RestInference, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._inference = inference
        self._limit = inference.engine.settings.limits.body
        self._body: list[bytes] | None = None
        self._size = 0
        self._pending = False  # an inference is under way
        self._job: Job | None = None
        self._closing = False
        self._ignoring = False
        self._lingering = False
        self._reading = False  # a request has begun and not ended
        self._patience: asyncio.TimerHandle | None = None
        self._longest = inference.engine.settings.batching.timeout

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._reading and self._patience is None:
            self._patience = self.loop.call_later(self._longest, self._give_up)
        elif not self._reading and self._patience is not None:
            self._patience.cancel()
            self._patience = None

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
            self._refuse_body()

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
            self._refuse_body()
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
        self._pending = True
        job = self._inference.handle(self.url, self.headers, body, self._reply)
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
            self._half_close()
        elif self._closing:
            self.transport.close()
        else:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _half_close(self) -> None:
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER, self.transport.close)

    def _refuse_body(self) -> None:
        """Answer at once. Closing while the client still sends would reset the connection and lose the answer."""
        refusal = body_too_large(self._limit)
        self._closing = self._ignoring = self._lingering = True
        self._body = None
        self._reply(refusal.status, *write_error(refusal))

    def shutdown(self) -> None:
        if self._pending or self._body is not None:
            self._closing = True
        else:
            super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
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
