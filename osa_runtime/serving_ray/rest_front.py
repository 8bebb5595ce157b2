"""REST in a replica: the embedded server's app. Calls that would reach only one of several replicas, such as loading
a model or reading statistics, are refused with 501.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from osa_runtime.serving.guard import Guard
from osa_runtime.serving.protocol import descriptions
from osa_runtime.serving.refusals import Refusal, Unsupported
from osa_runtime.serving.rest.response import Headers, write_error
from osa_runtime.serving.rest.routes import json_response

LOADING = re.compile(r"/v2/repository/models/[^/]+/(load|unload)")
COUNTING = re.compile(r"/metrics|/v2/models/stats|/v2/models/[^/]+(/versions/[^/]+)?/stats")
LOADING_CALLS = frozenset({"RepositoryModelLoad", "RepositoryModelUnload"})
COUNTING_CALLS = frozenset({"ModelStatistics"})


def check_path(path: str) -> None:
    if LOADING.fullmatch(path):
        raise _loading()
    if COUNTING.fullmatch(path):
        raise _counting()


def check_call(name: str) -> None:
    if name in LOADING_CALLS:
        raise _loading()
    if name in COUNTING_CALLS:
        raise _counting()


def _loading() -> Unsupported:
    return Unsupported(
        "A load or unload would reach one replica of this Ray Serve application; deploy the application again instead."
    )


def _counting() -> Unsupported:
    return Unsupported(
        "One replica of this Ray Serve application cannot count for all; read Ray's own metrics, which cover them all."
    )


class RestFront:
    """``close`` is awaited when Ray ends the replica, after its last request."""

    def __init__(self, app: ASGIApp, guard: Guard, close: Callable[[], Awaitable[None]]) -> None:
        self._app, self._guard, self._close = app, guard, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._answer(_without_prefix(scope), receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self._close()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._guard.check(dict(scope["headers"]), scope["path"])
            check_path(scope["path"])
        except Refusal as refusal:
            await _send(send, refusal.status, *write_error(refusal))
            return
        if scope["path"] == "/v2" and scope["method"] == "GET":
            await json_response(server_metadata())(scope, receive, send)
            return
        await self._app(scope, receive, send)


def server_metadata() -> dict[str, object]:
    metadata = descriptions.server_metadata()
    return metadata | {"extensions": [name for name in metadata["extensions"] if name != "statistics"]}


def _without_prefix(scope: Scope) -> Scope:
    """Remove the route prefix, so that the app sees the paths that it knows."""
    prefix = scope.get("root_path", "")
    if not prefix or not scope["path"].startswith(prefix):
        return scope
    raw = scope.get("raw_path") or scope["path"].encode()
    path = scope["path"][len(prefix) :] or "/"
    return {**scope, "path": path, "raw_path": raw[len(prefix.encode()) :] or b"/", "root_path": ""}


async def _send(send: Send, status: int, headers: Headers, content: bytes) -> None:
    headers = [*headers, (b"content-length", str(len(content)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
