"""One replica: the engine of the embedded server with its own models and its own batches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from osa_runtime.errors import StorageError
from osa_runtime.serving.engine.engine import Engine
from osa_runtime.serving.guard import Guard
from osa_runtime.serving.logs import Log
from osa_runtime.serving.rest.app import RestApp
from osa_runtime.serving_ray.grpc_front import METHODS, STREAM, GrpcFront
from osa_runtime.serving_ray.options import RayOptions, check_packed
from osa_runtime.serving_ray.rest_front import RestFront


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
