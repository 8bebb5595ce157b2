"""``osa bench``: latency, throughput and memory of an exported model, optionally next to eager PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from osa_runtime.cli.options import WHERE, Device, panel

_sizes, _how, _output, _where = map(panel, ("Sizes and inputs", "Measurement", "Output", WHERE))


def bench(
    artifact: Annotated[
        Path, typer.Argument(help="An exported folder, or a model file (.onnx, .pt, .pt2).", show_default=False)
    ],
    against: Annotated[
        Path | None,
        typer.Option(help="A checkpoint to compare with, in eager PyTorch.", show_default=False, metavar="CHECKPOINT"),
    ] = None,
    batches: Annotated[
        str | None, _sizes("--batch", help="Batches, with commas.", show_default="1,8, or the model's fixed batch")
    ] = None,
    tokens: Annotated[
        str | None,
        _sizes(help="Sequence lengths, with commas.", show_default="a few up to the model's longest, or 1024"),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        _sizes(
            "--input",
            "-i",
            help="Real data instead of random: an .npz with an array per input, or a file that `osa run` takes. Rows "
            "are repeated or cut to the batch, tokens cut to the length.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, _sizes(min=0, help="Seed of the random inputs.")] = 0,
    warm_up: Annotated[int, _how(min=0, help="Untimed calls before each block.")] = 3,
    iterations: Annotated[int, _how(min=1, help="Minimum number of timed calls for each contender and size.")] = 30,
    seconds: Annotated[float, _how(min=0, help="Minimum total time of these calls.")] = 1.0,
    memory: Annotated[bool, _how("--memory/--no-memory", help="Measure memory, in separate processes.")] = True,
    threads: Annotated[int | None, _where(min=1, help="Threads for each contender.", show_default="all cores")] = None,
    device: Device = "cpu",
    json_file: Annotated[
        Path | None,
        _output("--json", help="Write all figures to this .json; - prints them instead of tables.", show_default=False),
    ] = None,
    plot: Annotated[
        Path | None, _output(help="Draw latency and throughput into this .png or .svg.", show_default=False)
    ] = None,
    trace: Annotated[
        Path | None,
        _output(
            "--profile",
            help="Show the operators and nodes that take the most time; write ONNX Runtime's trace to this .json.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Measure latency, throughput, memory and load time of an exported model.

    With --against, the artifact and eager PyTorch take turns in blocks, with the same threads and inputs, and must
    return the same answers; otherwise the exit code is 1 and no figures are shown. Figures of a noisy run are marked.

    [bold]Examples[/bold]

    [cyan]osa bench digits-onnx --against runs/digits[/cyan]

    [cyan]osa bench encoder-onnx --batch 1,8 --tokens 16,64,256 --plot bench.png --json bench.json[/cyan]

    [cyan]osa bench digits-onnx --batch 32 --threads 1 --profile trace.json[/cyan]
    """
    from osa_runtime.benchmarking.benchmark import Benchmark
    from osa_runtime.benchmarking.configurations import BenchmarkSettings
    from osa_runtime.benchmarking.plot import draw_benchmark
    from osa_runtime.benchmarking.timing import Schedule
    from osa_runtime.cli import bench_report
    from osa_runtime.cli.options import parse_sizes
    from osa_runtime.cli.progress import StepProgress
    from osa_runtime.cli.run_arrays import Array, PixelSettings, read_inputs
    from osa_runtime.environment import usable_cores
    from osa_runtime.plotting import check_figure_path
    from osa_runtime.runtime.session import Session

    bench_report.check_files(json_file, trace)
    if plot is not None:
        check_figure_path(plot, "plot")

    def read_data(session: Session) -> tuple[dict[str, Array], list[str]]:
        return read_inputs(inputs or [], session.interface, PixelSettings(manifest=session.manifest))

    settings = BenchmarkSettings(
        artifact=artifact,
        against=against,
        batches=parse_sizes("batches", batches),
        tokens=parse_sizes("tokens", tokens),
        schedule=Schedule(warm_up, iterations, seconds),
        threads=threads or usable_cores(),
        device=device,
        seed=seed,
        read_data=read_data if inputs else None,
        memory=memory,
        trace=trace,
    )
    with StepProgress() as progress:
        benchmark = Benchmark(settings)
        if benchmark.disagreement is None:
            result = benchmark.measure(progress)
    if benchmark.disagreement is not None:
        typer.secho("error: ", fg=typer.colors.RED, bold=True, err=True, nl=False)
        typer.echo(benchmark.disagreement, err=True)
        raise typer.Exit(1)
    if plot is not None:
        draw_benchmark(result, plot)
    if json_file is not None:
        bench_report.write_json(result, json_file)
    if json_file != bench_report.STDOUT:
        bench_report.show(result)
        for what, path in (("All figures are", json_file), ("The plot is", plot), ("The trace is", trace)):
            if path is not None:
                typer.echo(f"{what} in {path}")
