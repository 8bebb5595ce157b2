"""``osa inspect``: the contents of an exported artifact or an ONNX file, and the providers that run it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

if TYPE_CHECKING:
    from osa_runtime.inspection.inspecting import GraphSummary, Inspection
    from osa_runtime.inspection.kernel_coverage import KernelCoverage
    from osa_runtime.inspection.suitability import Suitability


def inspect(
    artifact: Annotated[Path, typer.Argument(help="An exported folder, or an .onnx file.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    graph: Annotated[
        Path | None, typer.Option("--graph", help="Draw the main graph into this .png or .svg.", show_default=False)
    ] = None,
    provider: Annotated[
        list[str] | None,
        typer.Option(
            "--provider",
            help="cpu or cuda: the provider whose kernels are listed; may be repeated.",
            show_default="cpu and cuda",
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            help="A runtime, as for `osa export`: whether the model runs there, and why not; may be repeated.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show a model's inputs and outputs, functions, operators and size, and the nodes that a provider cannot run.

    The model is not run. ONNX Runtime lists its own kernels; where CUDA does not load, a table is used instead.

    [bold]Examples[/bold]

    [cyan]osa inspect exported/digits[/cyan]

    [cyan]osa inspect model.onnx --graph model.svg[/cyan]

    [cyan]osa inspect exported/digits --target openvino[/cyan]     exits with 1 if it does not run there

    [cyan]osa inspect exported/digits --json | jq .graph.operators[/cyan]
    """
    from osa_runtime.inspection import inspect_artifact
    from osa_runtime.inspection.drawing import draw_artifact
    from osa_runtime.plotting import check_figure_path

    if graph is not None:
        check_figure_path(graph, "graph")
    inspection = inspect_artifact(artifact, provider or ("cpu", "cuda"), target or ())
    if graph is not None:
        draw_artifact(artifact, graph)
    if as_json:
        typer.echo(json.dumps(asdict(inspection), indent=2, ensure_ascii=False))
    else:
        show(inspection)
        if graph is not None:
            typer.echo(f"\nThe graph is drawn in {graph}")
    if any(found.objections for found in inspection.targets):
        raise typer.Exit(1)


def show(inspection: Inspection) -> None:
    console = Console(highlight=False)
    console.print(f"[bold]{escape(inspection.path)}[/]")
    console.print(_summary(inspection))
    console.print(_tensors(inspection))
    if inspection.graph is not None:
        if inspection.graph.functions:
            console.print(_functions(inspection.graph))
        console.print(_operators(inspection.graph))
        if inspection.graph.expanded.keys() - inspection.graph.operators.keys():
            console.print(_inside_functions(inspection.graph))
    for placement in inspection.placements:
        _show_placement(console, placement)
    for found in inspection.targets:
        _show_target(console, found)
    for warning in inspection.warnings:
        console.print(f"[bold yellow]warning:[/] {escape(warning)}")


def _summary(inspection: Inspection) -> Table:
    table = Table.grid(padding=(0, 2))
    rows = [
        ("format", inspection.format),
        ("parameters", f"{inspection.parameters:,}"),
        ("size", _size(inspection.size)),
    ]
    graph = inspection.graph
    if graph is not None:
        opsets = ", ".join(f"{domain} {version}" for domain, version in graph.opsets.items())
        rows += [("weights", _size(graph.weight_bytes)), ("opsets", f"{opsets} · IR {graph.ir_version}")]
        rows += [("producer", graph.producer)] if graph.producer else []
    rows += _manifest_rows(inspection.manifest or {})
    for name, value in rows:
        table.add_row(f"  [dim]{name}[/]", escape(value))
    return table


def _manifest_rows(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    from osa_runtime.pixels import Standardisation

    rows = [("precision", manifest["dtype"])] if "dtype" in manifest else []
    ranges = [f"{axis} {key} {value}" for axis, ends in manifest.get("axes", {}).items() for key, value in ends.items()]
    rows += [("dynamic axes", ", ".join(ranges))] if ranges else []
    for name, fields in manifest.get("preprocessing", {}).items():
        rows.append((f"pixels of {name}", str(Standardisation.from_dict(fields))))
    for name in ("osa", "quantization", "source", "versions"):
        known = (manifest.get(name) or {}).items()
        shown = {key: value for key, value in known if value is not None and not isinstance(value, dict)}
        if shown:
            rows.append((name, ", ".join(f"{key} {_plain(value)}" for key, value in shown.items())))
    return rows


def _plain(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or "nothing"
    text = str(value)
    return f"{text[:12]}…" if len(text) == 64 and " " not in text else text  # a hash


def _tensors(inspection: Inspection) -> Table:
    table = _table("Inputs and outputs", "name", "type", "axes")
    for kind, specs in (("in", inspection.inputs), ("out", inspection.outputs)):
        for spec in specs:
            table.add_row(f"[dim]{kind:<3}[/] {escape(spec.name)}", spec.dtype, " × ".join(map(str, spec.shape)))
    return table


def _functions(graph: GraphSummary) -> Table:
    table = _table("Functions", "name", "calls", "what it computes")
    table.columns[1].justify = "right"
    for function in graph.functions:
        name = f"{function.domain}.{function.name}"
        shown = f"[bold cyan]{escape(name)}[/]" if function.in_graph else escape(name)
        table.add_row(shown, str(function.calls), escape(function.summary))
    return table


def _operators(graph: GraphSummary) -> Table:
    counted = f"{sum(graph.operators.values())} in the graph, {sum(graph.expanded.values())} with functions expanded"
    table = _table(f"Operators: {counted}", "operator", "in the graph", "expanded")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, count in graph.operators.items():
        shown = f"[bold cyan]{escape(name)}[/]" if "::" in name else escape(name)
        table.add_row(shown, str(count), str(graph.expanded.get(name, "")))
    return table


def _inside_functions(graph: GraphSummary) -> Padding:
    inner = [f"{name} {count}" for name, count in graph.expanded.items() if name not in graph.operators]
    return Padding(f"[dim]only inside functions:[/] {escape(', '.join(inner))}", (0, 2))


def _show_placement(console: Console, placement: KernelCoverage) -> None:
    name = placement.provider.upper() if placement.provider == "cpu" else "CUDA"
    unknown = placement.source.startswith("unknown")
    if placement.gaps:
        title = f"{name}: {placement.missing} of {placement.nodes} nodes have no kernel"
        table = _table(title, "operator", "types", "nodes", "what happens", "for example")
        for gap in placement.gaps:
            row = (gap.operator, ", ".join(gap.types), str(len(gap.nodes)), gap.consequence, gap.nodes[0])
            table.add_row(*map(escape, row))
        console.print(table)
    elif not unknown:
        console.print(f"\n[bold]{name}[/] has a kernel for every node ({placement.nodes} with functions expanded)")
    start = f"\n{name} kernels" if unknown else "kernels"
    console.print(Padding(f"[dim]{start} {escape(placement.source)}[/]", (0, 2)))


def _show_target(console: Console, found: Suitability) -> None:
    known = f"tried in {found.tried}" if found.tried else "not tried by this project"
    if not found.objections:
        console.print(f"\n[bold]{escape(found.runtime)}[/] takes it ({escape(known)})", soft_wrap=True)
        if found.advice:
            console.print(f"  [dim]{escape(found.advice)}[/]", soft_wrap=True)
    for objection in found.objections:
        console.print(f"\n[bold red]{escape(found.runtime)}:[/] {escape(objection)}", soft_wrap=True)
    if found.objections:
        console.print(f"  [dim]Export it with --target {found.target}.[/]")


def _table(title: str, *columns: str) -> Table:
    table = Table(
        title=f"\n{title}", title_justify="left", title_style="bold", box=None, padding=(0, 2), header_style="dim"
    )
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _size(count: int) -> str:
    if count < 1024:
        return f"{count} bytes"
    value, unit = count / 1024, "KiB"
    for larger in ("MiB", "GiB"):
        if value >= 1024:
            value, unit = value / 1024, larger
    return f"{value:.1f} {unit}"
