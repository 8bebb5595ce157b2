"""Settings of a server."""

from __future__ import annotations

import ipaddress
import math
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from osa_runtime.errors import InputError

MEGABYTE = 1 << 20
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class BatchSettings:
    """Batches of one model. ``max_queue`` counts requests, ``max_batch`` rows."""

    max_batch: int = 32
    max_delay: float = 0.0  # seconds
    max_queue: int = 512
    timeout: float = 30.0  # seconds from arrival to answer

    def __post_init__(self) -> None:
        check_from(1, max_batch=self.max_batch, max_queue=self.max_queue)
        check_from(0, max_delay=self.max_delay, timeout=self.timeout)


@dataclass(frozen=True)
class Limits:
    """Largest sizes of a request, in bytes, and the most connections, REST and gRPC together."""

    body: int = 64 * MEGABYTE
    tensor: int = 64 * MEGABYTE
    connections: int = 512

    def __post_init__(self) -> None:
        check_from(1, body=self.body, tensor=self.tensor, connections=self.connections)


@dataclass(frozen=True)
class ServerSettings:
    """``http_port`` and ``grpc_port``: 0 takes any free port, None leaves the protocol out."""

    artifacts: tuple[Path, ...] = ()
    repository: Path | None = None
    host: str = "127.0.0.1"
    http_port: int | None = 8000
    grpc_port: int | None = 8001
    device: str = "cpu"
    allow_fallback: bool = False
    threads: int | None = None
    versions: int = 1  # how many of the newest versions of a model are served
    watch: float | None = None  # seconds between checks of the files
    drain: float = 30.0  # seconds for requests to finish after SIGTERM
    require_certificate: bool = False
    trusted_keys: tuple[Path, ...] = ()  # certificates must be signed by one of these public keys
    token: str | None = field(default=None, repr=False)
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    batching: BatchSettings = field(default_factory=BatchSettings)
    limits: Limits = field(default_factory=Limits)
    workers: int = 1  # processes that share the ports

    def __post_init__(self) -> None:
        check_from(1, threads=self.threads, versions=self.versions, workers=self.workers)
        check_from(0, watch=self.watch, drain=self.drain)
        if not self.artifacts and self.repository is None:
            raise InputError("There is nothing to serve; give artifact folders or repository=DIR.")
        if self.http_port is None and self.grpc_port is None:
            raise InputError("Both REST and gRPC are switched off; leave one of them on.")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise InputError("tls_certificate=FILE and tls_key=FILE go together; give both or neither.")
        if self.workers > 1 and not hasattr(socket, "SO_REUSEPORT"):
            raise InputError(f"workers={self.workers}: this system cannot share a port between processes; use 1.")
        if self.token is not None and len(self.token) < 16:
            raise InputError(f"The token has {len(self.token)} characters, expected at least 16.")

    @property
    def wants_certificate(self) -> bool:
        """Trusted keys need required certificates."""
        return self.require_certificate or bool(self.trusted_keys)

    @property
    def model_threads(self) -> int:
        """One core stays free for the server: between runs ONNX Runtime's threads wait by spinning."""
        return self.threads or max(1, ((os.cpu_count() or 1) - 1) // self.workers)

    @property
    def is_open(self) -> bool:
        """True if other machines can reach the server without a token."""
        return not is_loopback(self.host) and self.token is None


def is_loopback(name: str) -> bool:
    """True for a name or an address of this machine."""
    if name.lower() in LOOPBACK:
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def check_from(least: float, **values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not least <= value < math.inf:
            raise InputError(f"{name}={value}: expected a number from {least:g} on.")
