"""The REST surface as an ASGI application: plain Starlette, since clients of this protocol send no Content-Type."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from osa_runtime.errors import OsaError
from osa_runtime.serving.engine import Engine
from osa_runtime.serving.guard import Guard
from osa_runtime.serving.refusals import Refusal, as_refusal
from osa_runtime.serving.rest_body import read_body
from osa_runtime.serving.rest_infer import RestInference
from osa_runtime.serving.rest_response import Headers, write_error
from osa_runtime.serving.rest_routes import RestRoutes, json_response


class RestApp:
    """Inference goes straight to :class:`RestInference`, everything else through Starlette's routes."""

    def __init__(self, engine: Engine, guard: Guard) -> None:
        self.inference = RestInference(engine, guard)
        self._guard = guard
        self._routes: ASGIApp = Starlette(routes=RestRoutes(engine).routes(), exception_handlers=_HANDLERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] == "POST" and scope["path"].endswith("/infer"):
            await self._infer(scope, receive, send)
            return
        try:
            self._guard.check(dict(scope["headers"]), scope["path"])
        except Refusal as refusal:
            await _refuse(refusal)(scope, receive, send)
            return
        with contextlib.suppress(ClientDisconnect):
            await self._routes(scope, receive, send)

    async def _infer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await read_body(receive, self.inference.engine.settings.limits.body)
        except ClientDisconnect:
            return
        except Refusal as refusal:
            await _refuse(refusal)(scope, receive, send)
            return
        answered: asyncio.Future[tuple[int, Headers, bytes]] = asyncio.get_running_loop().create_future()

        def reply(status: int, headers: Headers, content: bytes) -> None:
            if not answered.done():
                answered.set_result((status, headers, content))

        target = scope.get("raw_path") or scope["path"].encode()
        head = self.inference.open(target, scope["headers"], reply)
        job = self.inference.infer(head, body, reply) if head is not None else None
        left = asyncio.ensure_future(_disconnected(receive))
        await asyncio.wait((answered, left), return_when=asyncio.FIRST_COMPLETED)
        left.cancel()
        if not answered.done() and job is not None:
            job.cancel()
        status, headers, content = await answered
        headers = [*headers, (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _refuse(refusal: Refusal) -> Response:
    headers, content = write_error(refusal)
    return Response(content, refusal.status, {name.decode(): value.decode() for name, value in headers})


async def _on_error(_: Request, error: Exception) -> Response:
    return _refuse(as_refusal(error))


async def _on_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    content = {"error": f"{error.detail}: there is no such path or method on this server."}
    return json_response(content, error.status_code, dict(error.headers or {}))


_HANDLERS: Any = {OsaError: _on_error, HTTPException: _on_http_error}
