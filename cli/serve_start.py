"""Starting the server: the packages that it needs, its log, its event loop, and the lines that say where it is."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING

import typer

from osa_runtime.errors import InputError, MissingDependencyError

if TYPE_CHECKING:
    from osa_runtime.serving.engine.engine import Engine
    from osa_runtime.serving.operations.server import Server
    from osa_runtime.serving.settings import ServerSettings

PACKAGES = ("starlette", "uvicorn", "httptools", "orjson", "prometheus_client")
GRPC_PACKAGES = ("grpc", "grpc_health", "grpc_reflection", "tritonclient.grpc")


def run_server(settings: ServerSettings, log_level: str, log_requests: bool) -> None:
    """Serve until a signal; errors on the way up are raised."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its lines are no JSON, and peers can cause as many as they like
    check_packages(grpc=settings.grpc_port is not None)
    from osa_runtime.serving.logs import LEVELS, Log
    from osa_runtime.serving.operations.server import Server, run_loop

    if log_level not in LEVELS:
        raise InputError(f"--log-level is {log_level!r}, expected {', '.join(LEVELS)}.")

    if settings.workers > 1:
        from osa_runtime.serving.operations.workers import LogOptions, run_workers

        run_workers(settings, LogOptions(log_level, log_requests), show_addresses)
        return

    async def main() -> None:
        await Server(settings, Log(log_level, requests=log_requests), show_addresses).run()

    run_loop(main())


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
        origin = f"{scheme}://{server.addresses['http']}"
        typer.echo(f"REST and the page: {origin}")
    if "grpc" in server.addresses:
        typer.echo(f"gRPC:              {server.addresses['grpc']}")
    if "http" in server.addresses:
        show_calls(server.engine, origin)


def show_calls(engine: Engine, origin: str) -> None:
    """Print calls of the first model; the page has the same for all of them."""
    from osa_runtime.serving.protocol.example_calls import example_calls

    for model in engine.repository.served()[:1]:
        calls = example_calls(model.name, model.interface, origin, token=engine.settings.token is not None)
        typer.echo("Try it, in another terminal:")
        for line in calls.values():
            typer.echo(f"  {line}")
