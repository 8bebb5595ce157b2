"""The Ray Serve application: replicas, each the embedded server behind a REST front and a gRPC front.

In a config file: ``import_path: osa_runtime.serving_ray.app:build``. Only that function imports Ray.

REST is the server's own app; for gRPC, Ray's proxy calls a method for each call of the protocol. Calls that would reach
only one of several replicas, such as loading a model or reading statistics, are refused with 501.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send
from tritonclient.grpc import service_pb2 as pb

from osa_runtime.errors import StorageError
from osa_runtime.serving.engine.engine import Engine
from osa_runtime.serving.engine.statistics import Snapshot
from osa_runtime.serving.grpc.service import GrpcService, Metadata
from osa_runtime.serving.guard import Guard
from osa_runtime.serving.logs import Log
from osa_runtime.serving.refusals import Unsupported
from osa_runtime.serving.rest.app import RestApp
from osa_runtime.serving.rest.body import body_too_large
from osa_runtime.serving_ray import grpc_stubs  # noqa: F401 - replicas must be able to unpickle the messages
from osa_runtime.serving_ray.settings import RaySettings, check_packed


class ReplicaEngine(Engine):
    """Refuses what one of several replicas cannot do for all."""

    lacks = frozenset({"statistics"})

    async def load(self, name: str) -> None:  # noqa: ARG002 - for any model
        raise Unsupported(
            "A load or unload would reach one replica of this Ray Serve application; deploy the application again "
            "instead."
        )

    unload = load

    async def totals(self) -> Snapshot:
        raise Unsupported(
            "One replica of this Ray Serve application cannot count for all; read Ray's own metrics, which cover them "
            "all."
        )


def rest_front(app: ASGIApp, close: Callable[[], Awaitable[None]]) -> ASGIApp:
    """``close`` is awaited when Ray ends the replica, after its last request."""

    @contextlib.asynccontextmanager
    async def life(_: Any) -> AsyncIterator[None]:
        yield
        await close()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await app(_without_prefix(scope), receive, send)

    return Router(default=answer, lifespan=life)


def _without_prefix(scope: Scope) -> Scope:
    """Remove the route prefix, so that the app sees the paths that it knows."""
    prefix = scope.get("root_path", "")
    if not prefix or not scope["path"].startswith(prefix):
        return scope
    raw = scope.get("raw_path") or scope["path"].encode()
    path = scope["path"][len(prefix) :] or "/"
    return {**scope, "path": path, "raw_path": raw[len(prefix.encode()) :] or b"/", "root_path": ""}


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
        if message.ByteSize() > self._limit:
            raise body_too_large(self._limit)
        if name == "ModelInfer":
            return await self._service.infer(message, metadata)
        if name not in self._service.controls:
            raise Unsupported(f"{name} is not part of this server.")
        return await self._service.control(name, message)

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

    async def __init__(self, settings: RaySettings) -> None:  # type: ignore[misc]  # Ray awaits it
        server = settings.server_settings()
        if server.repository is not None and settings.packed:
            check_packed(server.repository, settings.packed)
        self._engine = ReplicaEngine(server, Log(settings.log_level, requests=settings.log_requests))
        try:
            await self._engine.repository.load_all()
        except BaseException:
            await self._engine.close()
            raise
        guard = Guard(server.token, loopback=settings.loopback)
        self._rest = rest_front(RestApp(self._engine, guard), self._engine.close)
        self._grpc = GrpcFront(self._engine, guard)

    def __serve_build_asgi_app__(self) -> ASGIApp:
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


DEPLOYMENT = "osa"


def build(arguments: dict[str, Any]) -> Any:
    """Build the application; the arguments are the fields of :class:`RaySettings`."""
    from ray import serve

    settings = RaySettings.read(arguments)
    deployment = serve.deployment(serve.ingress()(Replica), name=DEPLOYMENT)
    return deployment.options(**settings.deployment()).bind(settings)
