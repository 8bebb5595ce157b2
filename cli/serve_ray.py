"""``osa serve --engine ray``: the same server in replicas that a local Ray runs, or one that RAY_ADDRESS names."""

from __future__ import annotations

import importlib
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from osa_runtime.cli.serve_start import check_packages
from osa_runtime.errors import InputError, MissingDependencyError

if TYPE_CHECKING:
    from osa_runtime.serving.settings import ServerSettings
    from osa_runtime.serving_ray.addresses import Addresses
    from osa_runtime.serving_ray.options import RayOptions


def run_on_ray(
    settings: ServerSettings, replicas: str, token_file: Path | None, log_level: str, log_requests: bool
) -> None:
    """Deploy, say where, and serve until a signal."""
    check_packages(grpc=True)
    _check_ray()
    _check_settings(settings, token_file)
    from osa_runtime.serving_ray.addresses import Addresses
    from osa_runtime.serving_ray.cluster import Cluster
    from osa_runtime.serving_ray.rehearsal import rehearse

    options = _options(settings, replicas, token_file, log_level, log_requests)
    models = rehearse(options.settings())
    addresses = Addresses.choose(settings)
    with Cluster(options, addresses) as cluster:
        cluster.deploy()
        stop = _own_signals()
        _show(models, options, addresses, settings)
        stop.wait()


def _check_ray() -> None:
    try:
        importlib.import_module("ray.serve")
    except ImportError as error:
        raise MissingDependencyError(
            f'--engine ray needs ray, which cannot be imported ({error}). Run: pip install "osa-runtime[serve,ray]"'
        ) from error


def _check_settings(settings: ServerSettings, token_file: Path | None) -> None:
    from osa_runtime.serving.settings import Limits

    if settings.watch is not None:
        raise InputError("--watch would reach one replica only; leave it out, and deploy again for a new version.")
    if settings.tls_certificate is not None:
        raise InputError("Ray's proxies speak no TLS here; put a proxy that does in front, and leave --tls-* out.")
    if settings.limits.connections != Limits.connections:
        raise InputError("Connections end at Ray's proxies, which --max-connections does not reach; leave it out.")
    if settings.token is not None and token_file is None and os.environ.get("RAY_ADDRESS"):
        raise InputError("The replicas of a Ray that runs already do not see OSA_SERVE_TOKEN; give --token-file.")


def _options(
    settings: ServerSettings, replicas: str, token_file: Path | None, log_level: str, log_requests: bool
) -> RayOptions:
    from osa_runtime.serving.settings import MEGABYTE
    from osa_runtime.serving_ray.options import RayOptions

    return RayOptions(
        artifacts=tuple(str(path.absolute()) for path in settings.artifacts),
        repository=str(settings.repository.absolute()) if settings.repository else None,
        versions=settings.versions,
        require_certificate=settings.require_certificate,
        replicas=replicas,
        threads=settings.threads or 1,
        device=settings.device,
        allow_fallback=settings.allow_fallback,
        max_batch=settings.batching.max_batch,
        max_delay_ms=settings.batching.max_delay * 1e3,
        max_queue=settings.batching.max_queue,
        timeout=settings.batching.timeout,
        drain=settings.drain,
        max_body_mb=settings.limits.body / MEGABYTE,
        max_tensor_mb=settings.limits.tensor / MEGABYTE,
        token_file=str(token_file.absolute()) if token_file else None,
        log_level=log_level,
        log_requests=log_requests,
    )


def _own_signals() -> threading.Event:
    """After Ray has started, which takes SIGTERM for itself."""
    stop = threading.Event()

    def on_signal(number: int, frame: object) -> None:  # noqa: ARG001 - a signal handler's signature
        if stop.is_set():
            os._exit(1)  # asked twice: leave at once
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    return stop


def _show(models: list[str], options: RayOptions, addresses: Addresses, settings: ServerSettings) -> None:
    if settings.is_open:
        typer.echo(f"warning: other machines can reach {settings.host}, and no token is asked for", err=True)
    for model in models:
        typer.echo(f"{model} on {options.device}, replicas: {options.replicas}")
    typer.echo(f"REST and the page: http://{addresses.host}:{addresses.http_port}")
    if addresses.grpc_port is not None:
        typer.echo(f"gRPC:              {addresses.host}:{addresses.grpc_port}")
