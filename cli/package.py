"""``osa package``: exported models as folders for other servers, Triton and Ray Serve."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Literal

import typer

from osa_runtime.cli.options import BATCHING, FlaggedCommand, MaxBatch, MaxDelay

WHAT, SCALE, WHERE, RUN = "Package", "Replicas", "Addresses", "Device"

app = typer.Typer(help="Pack exported models for other servers.", no_args_is_help=True, rich_markup_mode="rich")


@app.callback()
def package() -> None:
    """Pack exported models for other servers."""


@app.command(cls=FlaggedCommand)
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
    max_batch: MaxBatch = 32,
    max_delay_ms: MaxDelay = 0.0,
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


@app.command(cls=FlaggedCommand)
def triton(
    artifacts: Annotated[
        list[Path], typer.Argument(help="Exported ONNX folders; each becomes a model with the folder's name.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the model repository.")],
    backend: Annotated[
        Literal["onnxruntime", "python"],
        typer.Option(help="Triton's own ONNX Runtime, or our session with its checks.", rich_help_panel=WHAT),
    ] = "onnxruntime",
    name: Annotated[
        str | None,
        typer.Option(help="For one artifact: the model's name.", show_default="its folder's", rich_help_panel=WHAT),
    ] = None,
    version: Annotated[
        int, typer.Option("--version-number", min=1, help="The model's version.", rich_help_panel=WHAT)
    ] = 1,
    warm_up: Annotated[
        bool,
        typer.Option(help="Run samples before the model is reported ready.", rich_help_panel=WHAT),
    ] = True,
    max_batch: MaxBatch = 32,
    max_delay_us: Annotated[
        int, typer.Option(min=0, help="Microseconds to wait for a larger batch.", rich_help_panel=BATCHING)
    ] = 0,
    preferred: Annotated[
        list[int] | None,
        typer.Option(
            "--preferred-batch",
            min=1,
            help="A batch size to wait for; may be repeated.",
            show_default="none",
            rich_help_panel=BATCHING,
        ),
    ] = None,
    instances: Annotated[
        int, typer.Option(min=1, help="Number of concurrent runs, per GPU on CUDA.", rich_help_panel=RUN)
    ] = 1,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Threads per instance.", show_default="chosen by the server", rich_help_panel=RUN),
    ] = None,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Device of the server.", rich_help_panel=RUN)] = "cpu",
    replace: Annotated[bool, typer.Option("--force", help="Replace an earlier repository.")] = False,
) -> None:
    """Write a model repository for NVIDIA's Triton: configurations, batching, warm-up, models.

    With --backend python the repository contains its own copy of our runtime; Triton's Python then needs numpy and
    onnxruntime, and every request is checked. Requests share batches where the model's first axis is dynamic.

    [bold]Examples[/bold]

    [cyan]osa package triton digits-onnx --out models[/cyan]        then: tritonserver --model-repository=models

    [cyan]osa package triton digits-onnx --out models --backend python --instances 2[/cyan]
    """
    from osa_runtime.packaging.triton_config import TritonSettings
    from osa_runtime.packaging.triton_repository import package_triton

    settings = TritonSettings(
        backend=backend,
        version=version,
        max_batch=max_batch,
        preferred=tuple(preferred or ()),
        max_delay_us=max_delay_us,
        instances=instances,
        device=device,
        threads=threads,
        warm_up=warm_up,
    )
    for model in package_triton(artifacts, out, settings, name=name, replace=replace):
        batches = f"batches of up to {model.max_batch}" if model.max_batch else "one request at a time"
        typer.echo(f"{model.name} (version {version}): {backend} backend, {batches}")
    typer.echo(f"Serve it with: tritonserver --model-repository={out}")
