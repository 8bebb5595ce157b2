"""The REST surface as an ASGI application: plain Starlette, since clients of this protocol send no Content-Type.

Inference does without Starlette's routes: they would take longer than a small model.
"""

from __future__ import annotations

import asyncio
import functools
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from osa_runtime.errors import OsaError
from osa_runtime.serving.engine.engine import Engine
from osa_runtime.serving.engine.limits import LARGE
from osa_runtime.serving.engine.messages import InferenceRequest
from osa_runtime.serving.guard import PROBES, Guard
from osa_runtime.serving.protocol.requests import compress
from osa_runtime.serving.refusals import BadRequest, as_refusal
from osa_runtime.serving.rest.body import Body, Headers, replay, write_error, write_response
from osa_runtime.serving.rest.request import RequestHead, read_head, read_request
from osa_runtime.serving.rest.routes import RestRoutes, json_response

CONTROL_BODY = 64 << 10  # bytes; requests other than inference are small
REMEMBERED = 256  # heads
WORTH_COMPRESSING = 512  # bytes; below that, compressing costs more than it saves
ONCE = (
    b"host",
    b"origin",
    b"authorization",
    b"content-length",
    b"content-encoding",
    b"transfer-encoding",
    b"inference-header-content-length",
)
Reply = tuple[int, Headers, bytes]


class Opened(NamedTuple):
    """A valid head: the length of its body (None: chunked), and its request to a model."""

    announced: int | None
    inference: RequestHead | None


class RestApp:
    def __init__(self, engine: Engine, guard: Guard) -> None:
        self.engine = engine
        self._guard = guard
        self._routes = Starlette(routes=RestRoutes(engine).routes(), exception_handlers=_HANDLERS)
        self._routes.router.redirect_slashes = False
        # Clients repeat their heads verbatim, so valid ones are remembered.
        self._open = functools.lru_cache(REMEMBERED)(self._check)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        connection = scope.get("state", {}).get("connection") or ForeignConnection()
        connection.begin()
        try:
            await self._respond(scope, receive, send, connection)
        except ClientDisconnect:
            pass
        finally:
            connection.end()

    async def _respond(self, scope: Scope, receive: Receive, send: Send, connection: Any) -> None:
        body = Body(receive)
        try:
            path, target = scope["path"], scope.get("raw_path")
            opened = self._open(scope["method"], path, target, scope["http_version"], tuple(scope["headers"]))
            body.expect(opened.announced)
            if not connection.served and path not in PROBES:
                raise self.engine.connections.refusal()
            if opened.inference is not None:
                answer = await self._infer(opened.inference, body, connection)
            else:
                content = await body.read(CONTROL_BODY)
                connection.received()
                await self._routes(scope, replay(content), send)
                return
        except ClientDisconnect:
            raise
        except Exception as error:  # noqa: BLE001 - a bug of ours must not leave the client waiting
            answer = self._failure(error)
        await _send(send, *answer, unread_by=connection if body.unread else None)

    def _check(
        self, method: str, path: str, target: bytes | None, version: str, fields: tuple[tuple[bytes, bytes], ...]
    ) -> Opened:
        headers = dict(fields)
        names = [name for name, _ in fields]
        for name in ONCE:
            if names.count(name) > 1:
                raise BadRequest(f"The header {name.decode()} is there {names.count(name)} times, expected once.")
        if b"host" not in headers and version != "1.0":
            raise BadRequest("The head has no header host, which every request must have.")
        if b"upgrade" in headers and b"upgrade" in headers.get(b"connection", b"").lower():
            raise BadRequest("The request offers another protocol behind other requests; send it alone.")
        if b"transfer-encoding" in headers:
            _check_transfer(headers[b"transfer-encoding"], version)
        self._guard.check(headers, path)
        announced = None if b"transfer-encoding" in headers else int(headers.get(b"content-length", b"0"))
        inference = method == "POST" and path.endswith("/infer")
        return Opened(announced, read_head(target or path.encode(), headers) if inference else None)

    async def _infer(self, head: RequestHead, body: Body, connection: Any) -> Reply:
        model = self.engine.repository.find(head.model, head.version)
        limits = model.limits
        # This much before there is room: a client that sends nothing needs none.
        content = await body.read(limits.body, LARGE + 1)
        if not body.unread and body.received <= LARGE and not head.is_packed:
            connection.received()
            return await self._run(read_request(head, content, limits), head, connection)
        size = limits.body if body.announced is None else body.announced
        async with self.engine.large.room(size + limits.body if head.is_packed else size) as place:
            async with place.receiving(lambda: body.received):
                content = await body.read(limits.body)
            connection.received()
            request = await self.engine.large.submit(read_request, head, content, limits, model.check_shapes)
            del content  # the parsed request holds what it needs
            return await self._run(request, head, connection)

    async def _run(self, request: InferenceRequest, head: RequestHead, connection: Any) -> Reply:
        answer = await self.engine.infer(request, alone=connection.alone, watch=connection.watch)
        headers, content = await self.engine.large.write(write_response, request, answer)
        return 200, *await _packed(headers, content, head.answer_encoding)

    def _failure(self, error: Exception) -> Reply:
        if not isinstance(error, OsaError):
            self.engine.log.error("request failed unexpectedly", traceback="".join(traceback.format_exception(error)))
        refusal = as_refusal(error)
        return refusal.status, *write_error(refusal)


class ForeignConnection:
    """Stands in for our connection in a foreign server, which manages its own and cancels calls of lost clients."""

    served, alone = True, False

    def begin(self) -> None: ...

    def watch(self, on_lost: Callable[[], None]) -> None: ...

    async def linger(self) -> None: ...

    received = end = begin


def _check_transfer(encoding: bytes, version: str) -> None:
    """Refuse codings other than chunked, and chunks in HTTP/1.0: proxies disagree about their meaning."""
    if encoding.lower() != b"chunked" or version == "1.0":
        raise BadRequest(
            f"The transfer encoding is {encoding[:40].decode('latin-1')!r} in version {version} of HTTP, expected "
            "chunked alone, in 1.1; say with Content-Encoding how the body is packed."
        )


async def _packed(headers: Headers, content: bytes, encoding: str | None) -> tuple[Headers, bytes]:
    if not encoding or len(content) < WORTH_COMPRESSING:
        return headers, content
    headers.append((b"content-encoding", encoding.encode()))
    if len(content) > LARGE:
        return headers, await asyncio.to_thread(compress, content, encoding)
    return headers, compress(content, encoding)


async def _send(send: Send, status: int, headers: Headers, content: bytes, unread_by: Any) -> None:
    """Send the answer, and close the connection if a body is still arriving."""
    headers.append((b"content-length", b"%d" % len(content)))
    if unread_by is not None:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content, "more_body": unread_by is not None})
    if unread_by is not None:
        await unread_by.linger()
        await send({"type": "http.response.body", "body": b""})


async def _on_error(_: Request, error: Exception) -> Response:
    refusal = as_refusal(error)
    headers, content = write_error(refusal)
    return Response(content, refusal.status, {name.decode(): value.decode() for name, value in headers})


async def _on_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    content = {"error": f"{error.detail}: there is no such path or method on this server."}
    return json_response(content, error.status_code, dict(error.headers or {}))


_HANDLERS: Any = {OsaError: _on_error, HTTPException: _on_http_error}
