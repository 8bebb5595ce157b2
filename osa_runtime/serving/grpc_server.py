"""gRPC on the running event loop, over an HTTP/2 of our own.

grpc.aio spends two tasks, a wait over all open calls and a round through its polling thread on each call, several times
what an inference of a small model costs, and that thread competes for the interpreter with the rest of the server.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import Callable
from typing import Any

from osa_runtime.errors import StorageError
from osa_runtime.serving.engine import Engine
from osa_runtime.serving.grpc_calls import InferCall, RefusedCall, StreamCall, UnaryCall
from osa_runtime.serving.grpc_messages import InferMessages
from osa_runtime.serving.grpc_service import SERVICE, GrpcService
from osa_runtime.serving.guard import Guard
from osa_runtime.serving.http2_connection import Http2Connection
from osa_runtime.serving.http2_headers import Headers
from osa_runtime.serving.http2_stream import Handler, Opening, Stream
from osa_runtime.serving.refusals import BadRequest, Refusal, Unsupported
from osa_runtime.serving.settings import ServerSettings

PATH = f"/{SERVICE}/"
HELD_BODIES = 4  # of the largest size, that one connection may have under way


class GrpcServer:
    def __init__(self, engine: Engine, guard: Guard) -> None:
        self._settings = engine.settings
        self._service = GrpcService(engine, guard)
        self._count = engine.connections
        self._connections: set[Http2Connection] = set()
        self._server: Any = None

    async def start(self) -> int:
        """Listen, and return the port."""
        settings, loop = self._settings, asyncio.get_running_loop()
        held = HELD_BODIES * settings.limits.body
        try:
            self._server = await loop.create_server(
                lambda: Http2Connection(self._accept, self._connections, held, self._count, loop.call_later),
                settings.host,
                settings.grpc_port,
                ssl=_context(settings),
            )
        except (OSError, OverflowError) as error:
            where = f"{settings.host}:{settings.grpc_port}"
            raise StorageError(f"gRPC cannot listen on {where}: {error}. Choose another --grpc-port.") from error
        return int(self._server.sockets[0].getsockname()[1])

    def _accept(self, metadata: Headers) -> Opening:
        """What is done with calls of these headers; asked once for those that repeat."""
        try:
            begin = self._call(metadata)
        except Refusal as refusal:
            begin = functools.partial(RefusedCall, self._service, metadata, refusal)

        def open_call(stream: Stream) -> Handler:
            if stream.connection.served:
                return begin()
            return RefusedCall(self._service, metadata, self._count.refusal())

        return open_call

    def _call(self, metadata: Headers) -> Callable[[], Handler]:
        path = metadata.get(":path", "")
        if metadata.get(":method") != "POST" or not metadata.get("content-type", "").startswith("application/grpc"):
            raise BadRequest("This port speaks gRPC; REST has a port of its own.")
        name = path[len(PATH) :] if path.startswith(PATH) else ""
        self._service.check(name, metadata)
        if name == "ModelInfer":
            messages = InferMessages(self._settings.limits.tensor)
            return functools.partial(InferCall, self._service, metadata, messages)
        if name == "ModelStreamInfer":
            return functools.partial(StreamCall, self._service, metadata)
        if name not in self._service.unary:
            raise Unsupported(f"{path[:200]} is not part of this server.")
        return functools.partial(UnaryCall, self._service, metadata, *self._service.unary[name])

    async def stop(self, grace: float) -> None:
        """Take no more calls, wait for those under way, then close."""
        self._server.close()
        for connection in tuple(self._connections):
            connection.leave()
        loop = asyncio.get_running_loop()
        end = loop.time() + grace
        while any(connection.busy for connection in self._connections) and loop.time() < end:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0)  # what was just written goes out
        for connection in tuple(self._connections):
            connection.close()


def _context(settings: ServerSettings) -> ssl.SSLContext | None:
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(settings.tls_certificate, settings.tls_key)
    context.set_alpn_protocols(["h2"])
    return context
