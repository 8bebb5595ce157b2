"""gRPC on the running event loop, served by grpc.aio. For compatibility: REST with binary tensors is faster."""

from __future__ import annotations

import logging
from typing import Any

import grpc

from osa_runtime.errors import StorageError
from osa_runtime.serving.engine.engine import Engine
from osa_runtime.serving.grpc.calls import IDLE, GrpcCalls
from osa_runtime.serving.guard import Guard

STREAMS = 64  # calls of one connection at a time; further ones wait in the client
SPARE = 64  # connections beyond the limit of calls, so that probes find one
METADATA = 64 << 10  # bytes
HANDSHAKE = 10.0  # seconds from the connection to its first settings
PING = 30.0  # seconds of silence after which a peer is pinged
PONG = 10.0  # seconds to answer a ping
CLIENT_PING = 5.0  # seconds between pings of an idle client


class GrpcServer:
    def __init__(self, engine: Engine, guard: Guard) -> None:
        logging.getLogger("grpc").addHandler(logging.NullHandler())  # our own log has everything of interest
        self._settings = engine.settings
        self._calls = GrpcCalls(engine, guard)
        self._server = grpc.aio.server(options=list(_options(engine).items()))
        self._server.add_generic_rpc_handlers((self._calls,))

    async def start(self) -> int:
        """Listen, and return the port."""
        where = f"{self._settings.host}:{self._settings.grpc_port}"
        try:
            port = self._listen(f"[{self._settings.host}]" if ":" in self._settings.host else self._settings.host)
        except RuntimeError as error:
            raise StorageError(f"gRPC cannot listen on {where}: {error}") from error
        await self._server.start()
        return port

    def _listen(self, host: str) -> int:
        settings = self._settings
        if settings.tls_certificate is None or settings.tls_key is None:
            return int(self._server.add_insecure_port(f"{host}:{settings.grpc_port}"))
        pair = settings.tls_key.read_bytes(), settings.tls_certificate.read_bytes()
        credentials = grpc.ssl_server_credentials((pair,))
        return int(self._server.add_secure_port(f"{host}:{settings.grpc_port}", credentials))

    async def stop(self, grace: float) -> None:
        """Refuse new calls, wait for those under way, then close."""
        self._calls.stop()
        await self._server.stop(grace)


def _options(engine: Engine) -> dict[str, Any]:
    settings, limits = engine.settings, engine.settings.limits
    return {
        "grpc.max_receive_message_length": engine.largest_body,
        "grpc.per_message_decompression": 0,  # we unpack ourselves: few at a time, and no further than the limits
        "grpc.max_metadata_size": METADATA,
        "grpc.absolute_max_metadata_size": METADATA,
        "grpc.max_concurrent_streams": min(STREAMS, limits.connections),
        "grpc.max_allowed_incoming_connections": limits.connections + SPARE,
        "grpc.server_handshake_timeout_ms": int(min(HANDSHAKE, settings.batching.timeout) * 1e3),
        "grpc.max_connection_idle_ms": int(IDLE * 1e3),
        "grpc.keepalive_time_ms": int(PING * 1e3),
        "grpc.keepalive_timeout_ms": int(PONG * 1e3),
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.http2.min_ping_interval_without_data_ms": int(CLIENT_PING * 1e3),
        "grpc.so_reuseport": int(settings.workers > 1),  # with one, a port that is taken is an error
    }
