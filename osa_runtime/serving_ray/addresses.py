"""Where Ray's proxies shall listen, checked before Ray starts: its own answer to a taken port is a timeout."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

from osa_runtime.errors import InputError, StorageError
from osa_runtime.serving.settings import LOOPBACK, ServerSettings
from osa_runtime.serving_ray.grpc_stubs import SERVICER_FUNCTION


@dataclass(frozen=True)
class Addresses:
    host: str
    http_port: int
    grpc_port: int | None

    @classmethod
    def choose(cls, settings: ServerSettings) -> Addresses:
        """A port of 0 becomes a free one."""
        if settings.http_port is None:
            raise InputError("Ray Serve always answers REST; leave --http-port on.")
        http = _free_port(settings.host, settings.http_port)
        grpc = None if settings.grpc_port is None else _free_port(settings.host, settings.grpc_port)
        return cls(settings.host, http, grpc)

    @property
    def node(self) -> str | None:
        """The address that Ray gives its own node; with this one, most of Ray listens on loopback only."""
        return "127.0.0.1" if self.host in LOOPBACK else None

    def serve_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"http_options": {"host": self.host, "port": self.http_port}}
        if self.grpc_port is not None:
            options["grpc_options"] = {"port": self.grpc_port, "grpc_servicer_functions": [SERVICER_FUNCTION]}
        return options


def _free_port(host: str, port: int) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            raise StorageError(f"Cannot listen on {host}:{port}: {error}. Choose another.") from error
        return int(probe.getsockname()[1])
