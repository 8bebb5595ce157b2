"""``osa package``: exported models as folders for other servers, Triton and Ray Serve, and for browsers."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated, Literal

import typer

from osa_runtime.cli.options import BATCHING, FlaggedCommand, MaxBatch, MaxDelay, panel

_package, _scale, _address, _run = map(panel, ("Package", "Replicas", "Addresses", "Device"))
_batching = panel(BATCHING)

app = typer.Typer(
    help="Pack exported models for other servers and for browsers.", no_args_is_help=True, rich_markup_mode="rich"
)


@app.callback()
def package() -> None:
    """Pack exported models for other servers and for browsers."""


@app.command(cls=FlaggedCommand)
def ray(
    artifacts: Annotated[
        list[Path], typer.Argument(help="Exported ONNX folders; each becomes a model with the folder's name.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the application.")],
    at: Annotated[
        Path | None, _package(help="Path of that folder on the machines of the cluster.", show_default="its path here")
    ] = None,
    name: Annotated[
        str | None, _package(help="For one artifact: the model's name.", show_default="its folder's")
    ] = None,
    version: Annotated[int, _package("--version-number", min=1, help="The models' version.")] = 1,
    require_certificate: Annotated[bool, _package("--require-certificate", help="Serve verified models only.")] = False,
    trusted_key: Annotated[
        list[Path] | None,
        _package(
            help="File on the machines with a public key that must have signed the certificates; may be repeated."
        ),
    ] = None,
    replicas: Annotated[str, _scale(help="N, or MIN:MAX to follow the load.")] = "2",
    target_ongoing: Annotated[
        float | None, _scale(help="Target number of ongoing requests per replica.", show_default="half of --max-batch")
    ] = None,
    upscale_delay: Annotated[
        float, _scale(min=0, help="Seconds of too many requests before replicas are added.")
    ] = 30.0,
    downscale_delay: Annotated[
        float, _scale(min=0, help="Seconds of too few requests before replicas are removed.")
    ] = 600.0,
    threads: Annotated[int, _scale(min=1, help="Threads, and CPUs, per replica.")] = 1,
    device: Annotated[
        Literal["cpu", "cuda"], _scale(help="Device of the replicas; with cuda each replica gets a GPU.")
    ] = "cpu",
    max_batch: MaxBatch = 32,
    max_delay_ms: MaxDelay = 0.0,
    max_queue: Annotated[int, _batching(min=1, help="Requests that may wait per replica.")] = 512,
    timeout: Annotated[float, _batching(min=0.001, help="Seconds from arrival to answer.")] = 30.0,
    host: Annotated[str, _address(help="Address of each machine's proxy.")] = "0.0.0.0",
    http_port: Annotated[int, _address(help="Port for REST.")] = 8000,
    grpc_port: Annotated[int, _address(help="Port for gRPC; -1 leaves it out.")] = 8001,
    route: Annotated[str, _address("--route-prefix", help="Prefix of the REST paths.")] = "/",
    proxies: Annotated[Literal["EveryNode", "HeadOnly"], _address(help="Machines that accept requests.")] = "EveryNode",
    token_file: Annotated[Path | None, _address(help="File on the machines with the token that clients send.")] = None,
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
    from osa_runtime.serving_ray.settings import RaySettings

    server = ServerSettings(
        repository=(at or out.absolute()) / MODELS,
        device=device,
        threads=threads,
        require_certificate=require_certificate,
        trusted_keys=tuple(trusted_key or ()),
        batching=BatchSettings(max_batch, max_delay_ms / 1e3, max_queue, timeout),
    )
    settings = RaySettings(
        server,
        token_file=token_file,
        replicas=replicas,
        target_ongoing=target_ongoing,
        upscale_delay=upscale_delay,
        downscale_delay=downscale_delay,
    )
    addresses = RayAddresses(host, http_port, None if grpc_port == -1 else grpc_port, route, proxies)
    packed = package_ray(artifacts, out, settings, addresses, name=name, version=version, replace=replace)
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
        Literal["onnxruntime", "python"], _package(help="Triton's own ONNX Runtime, or our session with its checks.")
    ] = "onnxruntime",
    name: Annotated[
        str | None, _package(help="For one artifact: the model's name.", show_default="its folder's")
    ] = None,
    version: Annotated[int, _package("--version-number", min=1, help="The model's version.")] = 1,
    warm_up: Annotated[bool, _package(help="Run samples before the model is reported ready.")] = True,
    max_batch: MaxBatch = 32,
    max_delay_us: Annotated[int, _batching(min=0, help="Microseconds to wait for a larger batch.")] = 0,
    preferred: Annotated[
        list[int] | None,
        _batching("--preferred-batch", min=1, help="A batch size to wait for; may be repeated.", show_default="none"),
    ] = None,
    instances: Annotated[int, _run(min=1, help="Number of concurrent runs, per GPU on CUDA.")] = 1,
    threads: Annotated[
        int | None, _run(min=1, help="Threads per instance.", show_default="chosen by the server")
    ] = None,
    device: Annotated[Literal["cpu", "cuda"], _run(help="Device of the server.")] = "cpu",
    replace: Annotated[bool, typer.Option("--force", help="Replace an earlier repository.")] = False,
) -> None:
    """Write a model repository for NVIDIA's Triton: configurations, batching, warm-up, models.

    With --backend python the repository contains its own copy of our runtime; Triton's Python then needs numpy and
    onnxruntime, and every request is checked. Requests share batches where the model's first axis is dynamic.

    [bold]Examples[/bold]

    [cyan]osa package triton digits-onnx --out models[/cyan]        then: tritonserver --model-repository=models

    [cyan]osa package triton digits-onnx --out models --backend python --instances 2[/cyan]
    """
    from osa_runtime.cli.serve import check_packages

    check_packages(grpc=True)
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


@app.command(cls=FlaggedCommand)
def web(
    artifact: Annotated[Path, typer.Argument(help="Exported ONNX folder of an image model.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the page.")],
    title: Annotated[str | None, _package(help="Title of the page.", show_default="the folder's name")] = None,
    samples: Annotated[
        str | None,
        _package(
            help="Pictures to choose from on the page: digits, mnist or fashion-mnist, or an .npz file as for "
            "`osa train --data`. Drawings are then placed and scaled as these pictures are.",
            show_default="none",
        ),
    ] = None,
    runtime_folder: Annotated[
        Path | None,
        _package(help="Folder with the files of onnxruntime-web.", show_default="fetched once, by npm, and checked"),
    ] = None,
    replace: Annotated[bool, typer.Option("--force", help="Replace an earlier page.")] = False,
) -> None:
    """Write a web page that runs an image model on the reader's own machine: draw, and it answers.

    A static folder for any file server, without a build step and without requests to other machines. It shows
    probabilities, time, and each orthogonal attention matrix A with the distance of AᵀA from I. Models exported with
    --target webgpu run on the GPU where the browser has one, if it returns what WASM returns; others in WASM.

    [bold]Examples[/bold]

    [cyan]osa export runs/digits --out digits-web --target webgpu[/cyan]

    [cyan]osa package web digits-web --out page --samples digits[/cyan]        then: python -m http.server -d page
    """
    from osa_runtime.packaging.web_page import PageSamples, package_web

    chosen = None
    if samples is not None:
        from osa_runtime.training.datasets import load_test_images
        from osa_runtime.training.npz import read_npz

        train, test = read_npz(Path(samples)) if samples.endswith(".npz") else (load_test_images(samples), None)
        chosen = PageSamples((test or train).x, (test or train).y)
    page = package_web(artifact, out, title=title, samples=chosen, runtime_folder=runtime_folder, replace=replace)
    typer.echo(f"{page.title}: {page.layers} attention layers shown, {page.size / 1e6:.0f} MB")
    if page.objections:
        typer.echo(f"It runs in WASM, not on WebGPU: {'; '.join(page.objections)}.")
        typer.echo("For both: osa export --target webgpu")
    typer.echo(f"Serve it with: python -m http.server -d {quote(str(out))}")
