"""Starting the server: the packages that it needs, its log, its event loop, and the lines that say where it is."""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING

import typer

from osa_runtime.errors import InputError, MissingDependencyError

if TYPE_CHECKING:
    from osa_runtime.serving.server import Server
    from osa_runtime.serving.settings import ServerSettings

PACKAGES = ("starlette", "uvicorn", "httptools", "orjson", "prometheus_client")
GRPC_PACKAGES = ("hpack", "grpc", "tritonclient.grpc")


def run_server(settings: ServerSettings, log_level: str, log_requests: bool) -> None:
    """Serve until a signal; errors on the way up are raised."""
    check_packages(grpc=settings.grpc_port is not None)
    from osa_runtime.serving.logs import LEVELS, Log
    from osa_runtime.serving.server import Server

    if log_level not in LEVELS:
        raise InputError(f"--log-level is {log_level!r}, expected {', '.join(LEVELS)}.")

    async def main() -> None:
        await Server(settings, Log(log_level, requests=log_requests), show_addresses).run()

    loop = _new_loop()
    try:
        loop.run_until_complete(main())
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def check_packages(*, grpc: bool) -> None:
    for name in (*PACKAGES, *(GRPC_PACKAGES if grpc else ())):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise MissingDependencyError(
                f'Serving needs {name}, which cannot be imported ({error}). Run: pip install "osa-runtime[serve]"'
            ) from error


def show_addresses(server: Server) -> None:
    scheme = "https" if server.engine.settings.tls_certificate else "http"
    for model in server.engine.repository.served():
        typer.echo(f"{model.name} (version {model.version_text}) on {model.session.placement.device}")
    if "http" in server.addresses:
        typer.echo(f"REST and the page: {scheme}://{server.addresses['http']}")
    if "grpc" in server.addresses:
        typer.echo(f"gRPC:              {server.addresses['grpc']}")


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        loop: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
        return loop
    except ImportError:  # there is none for Windows
        return asyncio.new_event_loop()
