"""``osa package ray``: exported models as an application for ``serve deploy``."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Literal

import typer

WHAT, SCALE, BATCHING, WHERE = "Package", "Replicas", "Batching", "Addresses"


def ray(
    artifacts: Annotated[
        list[Path], typer.Argument(help="Exported ONNX folders; each becomes a model with the folder's name.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the application.")],
    at: Annotated[
        Path | None,
        typer.Option(
            help="Path of that folder on the machines of the cluster.",
            show_default="its path here",
            rich_help_panel=WHAT,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="For one artifact: the model's name.", show_default="its folder's", rich_help_panel=WHAT),
    ] = None,
    version: Annotated[
        int, typer.Option("--version-number", min=1, help="The models' version.", rich_help_panel=WHAT)
    ] = 1,
    require_certificate: Annotated[
        bool, typer.Option("--require-certificate", help="Serve verified models only.", rich_help_panel=WHAT)
    ] = False,
    trusted_key: Annotated[
        list[Path] | None,
        typer.Option(
            help="File on the machines with a public key that must have signed the certificates; may be repeated.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    replicas: Annotated[str, typer.Option(help="N, or MIN:MAX to follow the load.", rich_help_panel=SCALE)] = "2",
    target_ongoing: Annotated[
        float | None,
        typer.Option(
            help="Target number of ongoing requests per replica.",
            show_default="half of --max-batch",
            rich_help_panel=SCALE,
        ),
    ] = None,
    upscale_delay: Annotated[
        float,
        typer.Option(min=0, help="Seconds of too many requests before replicas are added.", rich_help_panel=SCALE),
    ] = 30.0,
    downscale_delay: Annotated[
        float,
        typer.Option(min=0, help="Seconds of too few requests before replicas are removed.", rich_help_panel=SCALE),
    ] = 600.0,
    threads: Annotated[int, typer.Option(min=1, help="Threads, and CPUs, per replica.", rich_help_panel=SCALE)] = 1,
    device: Annotated[
        Literal["cpu", "cuda"],
        typer.Option(help="Device of the replicas; with cuda each replica gets a GPU.", rich_help_panel=SCALE),
    ] = "cpu",
    max_batch: Annotated[
        int, typer.Option(min=1, help="Largest number of rows per run.", rich_help_panel=BATCHING)
    ] = 32,
    max_delay_ms: Annotated[
        float, typer.Option(min=0, help="Milliseconds to wait for a larger batch.", rich_help_panel=BATCHING)
    ] = 0.0,
    max_queue: Annotated[
        int, typer.Option(min=1, help="Requests that may wait per replica.", rich_help_panel=BATCHING)
    ] = 512,
    timeout: Annotated[
        float, typer.Option(min=0.001, help="Seconds from arrival to answer.", rich_help_panel=BATCHING)
    ] = 30.0,
    host: Annotated[str, typer.Option(help="Address of each machine's proxy.", rich_help_panel=WHERE)] = "0.0.0.0",
    http_port: Annotated[int, typer.Option(help="Port for REST.", rich_help_panel=WHERE)] = 8000,
    grpc_port: Annotated[int, typer.Option(help="Port for gRPC; -1 leaves it out.", rich_help_panel=WHERE)] = 8001,
    route: Annotated[
        str, typer.Option("--route-prefix", help="Prefix of the REST paths.", rich_help_panel=WHERE)
    ] = "/",
    proxies: Annotated[
        Literal["EveryNode", "HeadOnly"], typer.Option(help="Machines that accept requests.", rich_help_panel=WHERE)
    ] = "EveryNode",
    token_file: Annotated[
        Path | None,
        typer.Option(help="File on the machines with the token that clients send.", rich_help_panel=WHERE),
    ] = None,
    replace: Annotated[bool, typer.Option("--force", help="Replace an earlier package.")] = False,
) -> None:
    """Write an application for Ray Serve: the models, and a config file for Ray's `serve deploy` or `serve run`.

    The folder must have the same path on every machine. The config file holds the models' hashes: a replica that finds
    other models there does not start, and a new package is a change that `serve deploy` rolls out.

    [bold]Examples[/bold]

    [cyan]osa package ray digits-onnx --out app[/cyan]        then: serve run app/serve.json

    [cyan]osa package ray digits-onnx --out app --at /srv/app --replicas 1:8 --token-file /etc/osa/token[/cyan]
    """
    from osa_runtime.cli.serve import check_packages

    check_packages(grpc=False)
    from osa_runtime.packaging.ray_application import MODELS, RayAddresses, package_ray
    from osa_runtime.serving.settings import BatchSettings, ServerSettings, is_loopback
    from osa_runtime.serving_ray.options import RayOptions

    server = ServerSettings(
        repository=(at or out.absolute()) / MODELS,
        device=device,
        threads=threads,
        require_certificate=require_certificate,
        trusted_keys=tuple(trusted_key or ()),
        batching=BatchSettings(max_batch, max_delay_ms / 1e3, max_queue, timeout),
    )
    options = RayOptions(
        server,
        token_file=token_file,
        replicas=replicas,
        target_ongoing=target_ongoing,
        upscale_delay=upscale_delay,
        downscale_delay=downscale_delay,
    )
    addresses = RayAddresses(host, http_port, None if grpc_port == -1 else grpc_port, route, proxies)
    packed = package_ray(artifacts, out, options, addresses, name=name, version=version, replace=replace)
    if token_file is None and not is_loopback(host):
        typer.echo(f"warning: {host} can be reached from other machines, and no token is required", err=True)
    elif token_file is None and addresses.grpc_port is not None:
        typer.echo("warning: Ray's own proxy opens gRPC on every interface, and no token is required", err=True)
    for model in packed.models:
        typer.echo(f"{model} on {device}, replicas: {replicas}")
    extra = "cuda" if device == "cuda" else "cpu"
    typer.echo(f'Every machine needs: pip install "osa-runtime[{extra},serve,ray]"')
    typer.echo(f"On a cluster:        serve deploy {quote(str(packed.config))}")
    typer.echo(f"On this machine:     serve run {quote(str(packed.config))}")
