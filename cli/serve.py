"""``osa serve``: exported models over the Open Inference Protocol, REST and gRPC."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osa_runtime.cli.options import BATCHING, WHERE, AllowFallback, Device, MaxBatch, MaxDelay, panel
from osa_runtime.errors import InputError, MissingDependencyError

if TYPE_CHECKING:
    from osa_runtime.serving.engine.engine import Engine
    from osa_runtime.serving.operations.server import Server
    from osa_runtime.serving.settings import ServerSettings


_address, _models, _safety = map(panel, ("Address", "Models", "Safety and limits"))
_run, _queue = panel(WHERE), panel(BATCHING)


def serve(
    artifacts: Annotated[
        list[Path] | None, typer.Argument(help="Exported ONNX folders; each is served under its folder's name.")
    ] = None,
    repository: Annotated[Path | None, _models(help="A folder of models: DIR/NAME/ or DIR/NAME/VERSION/.")] = None,
    versions: Annotated[int, _models(min=1, help="Number of the newest versions to serve.")] = 1,
    watch: Annotated[float | None, _models(min=0.1, help="Check for new versions at this interval in seconds.")] = None,
    require_certificate: Annotated[
        bool,
        _models(
            "--require-certificate", help="Serve only models whose certificate.json is a PASS for exactly these files."
        ),
    ] = False,
    trusted_key: Annotated[
        list[Path] | None,
        _models(help="Require certificates, signed by this public key (PEM or OpenSSH); may be repeated."),
    ] = None,
    host: Annotated[str, _address(help="The address to listen on.")] = "127.0.0.1",
    http_port: Annotated[
        int, _address(min=-1, max=65535, help="Port for REST; 0 chooses a free port, -1 disables it.")
    ] = 8000,
    grpc_port: Annotated[
        int, _address(min=-1, max=65535, help="Port for gRPC; 0 chooses a free port, -1 disables it.")
    ] = 8001,
    workers: Annotated[int, _run(min=1, max=256, help="Processes that share the ports, for more cores.")] = 1,
    device: Device = "cpu",
    allow_fallback: AllowFallback = False,
    threads: Annotated[int | None, _run(min=1, help="Threads per model.", show_default="all cores but one")] = None,
    max_batch: MaxBatch = 32,
    max_delay_ms: MaxDelay = 0.0,
    max_queue: Annotated[int, _queue(min=1, help="Largest number of waiting requests; further ones get 503.")] = 512,
    timeout: Annotated[float, _queue(min=0.001, help="Longest time of a request in seconds.")] = 30.0,
    drain: Annotated[float, _queue(min=0, help="Seconds to finish requests after SIGTERM.")] = 30.0,
    max_body_mb: Annotated[float, _safety(min=0.001, max=1e6, help="Largest request in megabytes.")] = 64.0,
    max_tensor_mb: Annotated[float, _safety(min=0.001, max=1e6, help="Largest tensor in megabytes.")] = 64.0,
    max_connections: Annotated[
        int, _safety(min=1, help="Largest number of open connections, REST and gRPC; further ones get 503.")
    ] = 512,
    token_file: Annotated[
        Path | None, _safety(help="Require the bearer token in this file; or set OSA_SERVE_TOKEN.")
    ] = None,
    tls_certificate: Annotated[Path | None, _safety(help="A certificate chain (PEM), for TLS.")] = None,
    tls_key: Annotated[Path | None, _safety(help="Its private key (PEM).")] = None,
    log_level: Annotated[str, _run(help="debug, info, warning or error.")] = "info",
    log_requests: Annotated[bool, _run("--log-requests", help="Log every inference, too.")] = False,
) -> None:
    """Serve exported models over the Open Inference Protocol (KServe V2): REST, gRPC, and a web page.

    Requests that arrive while the model is busy are run together. Without --token-file every client that reaches the
    address is served; by default that is this machine only. SIGTERM finishes accepted requests and exits with 0.

    [bold]Examples[/bold]

    [cyan]osa serve digits-onnx[/cyan]                       then open http://127.0.0.1:8000

    [cyan]osa serve digits-onnx --workers 4[/cyan]           four processes on one port

    [cyan]osa serve --repository models --watch 5[/cyan]     loads new versions as they appear

    [cyan]osa serve digits-onnx --host 0.0.0.0 --token-file token[/cyan]
    """
    from osa_runtime.serving.engine.model_folders import check_keys
    from osa_runtime.serving.guard import read_token
    from osa_runtime.serving.settings import MEGABYTE, BatchSettings, Limits, ServerSettings

    check_keys(trusted_key or [])
    settings = ServerSettings(
        artifacts=tuple(artifacts or ()),
        repository=repository,
        host=host,
        http_port=None if http_port < 0 else http_port,
        grpc_port=None if grpc_port < 0 else grpc_port,
        device=device,
        allow_fallback=allow_fallback,
        threads=threads,
        versions=versions,
        watch=watch,
        drain=drain,
        require_certificate=require_certificate,
        trusted_keys=tuple(trusted_key or ()),
        token=read_token(token_file),
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        batching=BatchSettings(max_batch, max_delay_ms / 1e3, max_queue, timeout),
        limits=Limits(int(max_body_mb * MEGABYTE), int(max_tensor_mb * MEGABYTE), max_connections),
        workers=workers,
    )
    run_server(settings, log_level, log_requests)


PACKAGES = ("starlette", "uvicorn", "httptools", "orjson", "prometheus_client")
GRPC_PACKAGES = ("grpc", "grpc_health", "grpc_reflection", "tritonclient.grpc")


def run_server(settings: ServerSettings, log_level: str, log_requests: bool) -> None:
    """Serve until a signal; errors during start-up are raised."""
    # its lines are not JSON, and clients could cause any number of them
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    check_packages(grpc=settings.grpc_port is not None)
    from osa_runtime.serving.logs import LEVELS, Log
    from osa_runtime.serving.operations.server import Server, run_loop

    if log_level not in LEVELS:
        raise InputError(f"--log-level is {log_level!r}, expected {', '.join(LEVELS)}.")

    if settings.workers > 1:
        from osa_runtime.serving.operations.workers import LogSettings, run_workers

        run_workers(settings, LogSettings(log_level, log_requests), show_addresses)
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
    """Print example calls of the first model; the page shows them for every model."""
    from osa_runtime.serving.protocol.descriptions import example_calls

    for model in engine.repository.served()[:1]:
        calls = example_calls(model.name, model.interface, origin, token=engine.settings.token is not None)
        typer.echo("Try it, in another terminal:")
        for line in calls.values():
            typer.echo(f"  {line}")
