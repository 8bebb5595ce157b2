"""``osa export``: a checkpoint, or the user's own module, as a deployable folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from osa_runtime.cli.options import FILES, panel
from osa_runtime.targets import TARGETS

if TYPE_CHECKING:
    from osa_runtime.artifact import Artifact
    from osa_runtime.targets import Target


_what, _graph, _files = map(panel, ("What", "Graph", FILES))


def export(
    out: Annotated[Path, _files("--out", "-o", help="Folder for the artifact.")],
    checkpoint: Annotated[
        Path | None, typer.Argument(help="A checkpoint, or the folder of a training run.", show_default=False)
    ] = None,
    factory: Annotated[
        str | None,
        _what(
            help="For a model of your own: package.module:function that returns "
            "(module, example inputs, {input: {axis: name}})."
        ),
    ] = None,
    weights: Annotated[Path | None, _what(help="With --factory: its weights, .safetensors or .pt.")] = None,
    format: Annotated[Literal["onnx", "torchscript", "pt2"], _what(help="Format of the model file.")] = "onnx",
    dtype: Annotated[str, _what(help="fp32 or fp16; the OSA core stays in fp32.")] = "fp32",
    static: Annotated[bool, _what("--static", help="Fix every axis at the size of the example.")] = False,
    pixels: Annotated[
        Literal["float32", "uint8"],
        _what(
            help="Type of the images that clients send: standardised, or raw bytes (a quarter of the size), which the "
            "model standardises in its first layer."
        ),
    ] = "float32",
    target: Annotated[
        str | None,
        _what(
            help="The runtime that it is for: " + ", ".join(TARGETS) + ". Chooses --format, --functions, --squarings "
            "and --core.",
            show_default=False,
        ),
    ] = None,
    opset: Annotated[int, _graph(help="ONNX operator set, 18 to 23.")] = 18,
    functions: Annotated[
        Literal["keep", "inline"], _graph(help="Keep one ai.osa node per attention layer, or expand it.")
    ] = "keep",
    function_classes: Annotated[
        list[str] | None,
        _graph(
            help="Classes of modules, package.module:Class[,…]: each call of one becomes a node of an ONNX function "
            "with the name of the class. May be repeated.",
            show_default=False,
        ),
    ] = None,
    squarings: Annotated[
        str | None,
        _graph(
            help="auto (as many as the data needs, a Loop) or a fixed number, without control flow.",
            show_default="as trained",
        ),
    ] = None,
    approximant: Annotated[
        Literal["taylor", "pade"] | None, _graph(help="Approximant of the exponential.", show_default="as trained")
    ] = None,
    form: Annotated[
        Literal["auto", "dense", "lowrank"] | None,
        _graph(help="Through S itself, through [Q K], or by size.", show_default="as trained"),
    ] = None,
    core: Annotated[
        Literal["float64", "float32"],
        _graph(
            help="float32 leaves no float64 in the graph, for runtimes without it; NaN where float32 is not enough."
        ),
    ] = "float64",
    external_data: Annotated[bool, _files("--external-data", help="Write the weights to model.onnx.data.")] = False,
    replace: Annotated[bool, _files("--force", help="Replace an earlier artifact.")] = False,
    dry_run: Annotated[bool, _files("--dry-run", help="Show what would be written, and write nothing.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the time of each step.")] = False,
) -> None:
    """Export a trained model to ONNX, TorchScript or torch.export, and check it against eager.

    [bold]Examples[/bold]

    [cyan]osa export runs/digits --out digits-onnx[/cyan]

    [cyan]osa export runs/digits --out digits-openvino --target openvino[/cyan]

    [cyan]osa export runs/digits --out digits-bytes --pixels uint8[/cyan]     clients send raw pixels

    [cyan]osa export runs/digits --out digits-blocks --function-classes osa_runtime.nn.block:Block[/cyan]

    [cyan]osa export --factory my_models:build --weights w.safetensors --out mine[/cyan]
    """
    from osa_runtime.environment import require
    from osa_runtime.errors import InputError

    if (checkpoint is None) == (factory is None):
        raise InputError("Give either a CHECKPOINT folder or --factory package.module:function.")
    if weights is not None and factory is None:
        raise InputError("--weights goes with --factory; a checkpoint has its own.")
    if pixels != "float32" and factory is not None:
        raise InputError("--pixels is for checkpoints; let your own module take uint8 and standardise it in forward().")
    options: dict[str, Any] = {
        "format": format,
        "dtype": dtype,
        "opset": opset,
        "functions": functions,
        "squarings": _squarings(squarings),
        "approximant": approximant,
        "form": form,
        "external_data": external_data,
        "core": core,
        "target": target,
    }
    require("Exporting", "torch", "onnx", "onnxscript", "safetensors", extra="export")
    report = ExportReport()
    report.check(options, out, replace, [name for text in function_classes or [] for name in text.split(",") if name])
    _check_source(checkpoint, factory, weights, out, pixels)
    if dry_run:
        report.plan(checkpoint or factory, out, options | {"pixels": pixels}, static)
        return
    from osa_runtime.cli.progress import StepLines

    options |= {"static": static, "replace": replace, "progress": StepLines(report.console, verbose=verbose)}
    if checkpoint is not None:
        from osa_runtime.exporters import export_checkpoint

        artifact = export_checkpoint(checkpoint, out, pixels=pixels, **options)
    else:
        from osa_runtime.exporters.factory import export_factory

        artifact = export_factory(str(factory), weights, out, **options)
    report.result(artifact)


def _check_source(checkpoint: Path | None, factory: str | None, weights: Path | None, out: Path, pixels: str) -> None:
    """Check the source before the first step is announced, and for --dry-run."""
    if checkpoint is not None:
        from osa_runtime.exporters.checkpoint_export import check_checkpoint

        check_checkpoint(checkpoint, out, pixels)
    else:
        from osa_runtime.exporters.factory import check_factory

        check_factory(str(factory), weights, out)


def _squarings(text: str | None) -> str | int | None:
    return int(text) if text is not None and text.isdecimal() else text


class ExportReport:
    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self.compiler: Target | None = None

    def check(self, options: dict[str, Any], out: Path, replace: bool, classes: list[str]) -> None:
        """Refuse before the long work what can be refused by then; ``classes`` become functions where there are any."""
        from osa_runtime.artifact import MANIFEST_FILE
        from osa_runtime.atomic import check_replaceable
        from osa_runtime.exporters.settings import settings_for

        self.settings = settings_for(**options)
        if classes and self.settings.functions == "inline":
            why = f"{options['target']} takes none" if options["functions"] == "keep" else "as --functions inline asks"
            self.console.print(f"--function-classes has no effect: functions are inlined, {why}.")
        elif classes:
            options["functions"] = classes
            self.settings = settings_for(**options)
        if options["target"] is not None:
            from osa_runtime.exporters.compiled import compiler_of

            self.compiler = compiler_of(options["target"])
        check_replaceable(out, replace=replace, marker=MANIFEST_FILE)

    def plan(self, source: object, out: Path, options: dict[str, Any], static: bool) -> None:
        from osa_runtime.artifact import MANIFEST_FILE
        from osa_runtime.formats import FORMATS

        self.console.print(f"Would export {source} to {out}:", soft_wrap=True)
        model = FORMATS[self.settings.format].file
        compiled = [self.compiler.file] if self.compiler is not None and self.compiler.file else []
        files = [model, *([f"{model}.data"] if options["external_data"] else []), *compiled, MANIFEST_FILE]
        self.console.print(f"  {', '.join(files)}", soft_wrap=True)
        chosen = {name: value for name, value in options.items() if value not in (None, False)} | {"static": static}
        self.console.print("  " + ", ".join(f"{name}={value}" for name, value in chosen.items()), soft_wrap=True)

    def result(self, artifact: Artifact) -> None:
        manifest = artifact.manifest
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        size = sum(entry.size for entry in manifest.files.values())
        rows = {
            "artifact": str(artifact.folder),
            "format": manifest.format + (f", opset {manifest.opset}" if manifest.opset else "") + f", {manifest.dtype}",
            "inputs": "  ".join(map(str, manifest.inputs)),
            "outputs": "  ".join(map(str, manifest.outputs)),
            "parameters": f"{manifest.parameters:,}",
            "size": f"{size / 2**20:.2f} MiB",
            "attention": ", ".join(
                f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}"
                for k, v in (asdict(manifest.osa) if manifest.osa is not None else {}).items()
            ),
        }
        for name, value in rows.items():
            if value:
                table.add_row(f"[bold]{name}[/bold]", value.replace("[", r"\["))
        self.console.print(table)
        self.console.print("It agrees with eager on its example, and with every dynamic axis at other sizes.")
