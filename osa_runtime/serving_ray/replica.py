"""A replica of Ray Serve: the embedded server behind a REST front and a gRPC front.

REST is the server's own app; for gRPC, Ray's proxy calls a method for each call of the protocol. Calls that would reach
only one of several replicas, such as loading a model or reading statistics, are refused with 501.
"""

from __future__ import annotations

import functools
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass
from starlette.types import ASGIApp, Receive, Scope, Send
from tritonclient.grpc import service_pb2 as pb

from osa_runtime.errors import StorageError
from osa_runtime.serving.engine.engine import Engine
from osa_runtime.serving.grpc.service import GrpcService, Metadata
from osa_runtime.serving.guard import Guard
from osa_runtime.serving.logs import Log
from osa_runtime.serving.protocol import descriptions
from osa_runtime.serving.refusals import Refusal, Unsupported
from osa_runtime.serving.rest.app import RestApp
from osa_runtime.serving.rest.body import Headers, body_too_large, write_error
from osa_runtime.serving.rest.routes import json_response
from osa_runtime.serving_ray.options import RayOptions, check_packed

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


METHODS = {method.name: method for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods}
STREAM = "ModelStreamInfer"


class GrpcFront:
    def __init__(self, engine: Engine, guard: Guard) -> None:
        self._service = GrpcService(engine, guard)
        self._limit = engine.settings.limits.body

    async def call(self, name: str, message: Any, context: Any) -> Any:
        """Answer a call. Errors are set on the context: Ray would log an exception and send it with a traceback."""
        metadata = dict(context.invocation_metadata())
        try:
            return await self._answer(name, message, metadata)
        except Exception as error:  # noqa: BLE001 - becomes the call's status
            self._refuse(context, error)
            return GetMessageClass(METHODS[name].output_type)()

    async def _answer(self, name: str, message: Any, metadata: Metadata) -> Any:
        self._service.check(name, metadata)
        check_call(name)
        if message.ByteSize() > self._limit:
            raise body_too_large(self._limit)
        if name == "ModelInfer":
            return await self._service.infer(message, metadata)
        if name == "ServerMetadata":
            return ParseDict(server_metadata(), pb.ServerMetadataResponse())
        if name not in self._service.unary:
            raise Unsupported(f"{name} is not part of this server.")
        return await self._service.unary[name][1](message)

    async def stream(self, messages: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        metadata = dict(context.invocation_metadata())
        try:
            self._service.check(STREAM, metadata)
            answers = functools.partial(self._service.stream_answer, metadata=metadata)
            async for answer in self._service.stream(messages, answers):
                yield answer
        except Exception as error:  # noqa: BLE001 - becomes the call's status
            self._refuse(context, error)

    def _refuse(self, context: Any, error: Exception) -> None:
        refusal = self._service.refusal(error)
        context.set_code(grpc.StatusCode[refusal.code])
        context.set_details(str(refusal))


class Replica:
    """Ray considers it started, and routes requests to it, when ``__init__`` has loaded and warmed every model."""

    async def __init__(self, options: RayOptions) -> None:  # type: ignore[misc]  # Ray awaits it
        settings = options.settings()
        if settings.repository is not None and options.packed:
            check_packed(settings.repository, options.packed)
        self._engine = Engine(settings, Log(options.log_level, requests=options.log_requests))
        try:
            await self._engine.repository.load_all()
        except BaseException:
            await self._engine.close()
            raise
        guard = Guard(settings.token, loopback=options.loopback)
        self._rest = RestFront(RestApp(self._engine, guard), guard, self._engine.close)
        self._grpc = GrpcFront(self._engine, guard)

    def __serve_build_asgi_app__(self) -> RestFront:
        return self._rest

    async def check_health(self) -> None:
        if not self._engine.ready:
            raise StorageError("The replica has no model that is ready.")

    async def ModelStreamInfer(self, messages: AsyncIterator[Any], grpc_context: Any) -> AsyncIterator[Any]:
        async for answer in self._grpc.stream(messages, grpc_context):
            yield answer


def _method(name: str) -> Callable[[Replica, Any, Any], Awaitable[Any]]:
    async def call(self: Replica, message: Any, grpc_context: Any) -> Any:
        return await self._grpc.call(name, message, grpc_context)

    return call


for _name in METHODS.keys() - {STREAM}:
    setattr(Replica, _name, _method(_name))
