"""Starting and stopping gRPC on the running event loop."""

from __future__ import annotations

import grpc
from tritonclient.grpc import service_pb2_grpc

from osa_runtime.errors import StorageError
from osa_runtime.serving.engine import Engine
from osa_runtime.serving.grpc_service import GrpcService
from osa_runtime.serving.guard import Guard
from osa_runtime.serving.settings import ServerSettings


class GrpcServer:
    def __init__(self, engine: Engine, guard: Guard) -> None:
        self._settings = engine.settings
        limit = engine.settings.limits.body
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", limit),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),  # a taken port is an error, not a port shared with a stranger
            ]
        )
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(GrpcService(engine, guard), self._server)

    async def start(self) -> int:
        """Listen, and return the port."""
        settings = self._settings
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        address = f"{host}:{settings.grpc_port}"
        try:
            if settings.tls_certificate is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, _credentials(settings))
        except (RuntimeError, OSError) as error:
            raise StorageError(f"gRPC cannot listen on {address}: {error}. Choose another --grpc-port.") from error
        await self._server.start()
        return int(port)

    async def stop(self, grace: float) -> None:
        """Refuse new calls and wait for those under way."""
        await self._server.stop(grace)


def _credentials(settings: ServerSettings) -> grpc.ServerCredentials:
    assert settings.tls_certificate is not None
    assert settings.tls_key is not None
    pair = (settings.tls_key.read_bytes(), settings.tls_certificate.read_bytes())
    return grpc.ssl_server_credentials([pair])
