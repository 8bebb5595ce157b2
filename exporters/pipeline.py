"""Export a module: one call from ``nn.Module`` to an artifact on disk."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from osa_runtime.artifact import MANIFEST_FILE, Artifact, describe_files
from osa_runtime.atomic import atomic_folder
from osa_runtime.errors import InputError
from osa_runtime.exponential import ExponentialMethod
from osa_runtime.exporters.acceptance import Exported, artifact_runner, check_answers
from osa_runtime.exporters.compiled import compile_program, compiler_of
from osa_runtime.exporters.dynamic_axes import spelled_out
from osa_runtime.exporters.eager import rounding_depth
from osa_runtime.exporters.examples import describe_examples, positional
from osa_runtime.exporters.folding import in_type, prepared
from osa_runtime.exporters.manifest_entries import axis_ranges, describe_outputs, record, squarings_named, versions
from osa_runtime.exporters.roles import find_roles
from osa_runtime.exporters.settings import DEFAULT_OPSET, settings_for
from osa_runtime.formats import FORMATS
from osa_runtime.interface import Interface
from osa_runtime.manifest import Manifest, check_class_names, check_preprocessing, check_value_ranges
from osa_runtime.pixels import Standardisation
from osa_runtime.steps import Listener, Progress
from osa_runtime.targets import allows_dynamic_axes


def export(
    module: nn.Module,
    args: Tensor | Sequence[Tensor],
    out: str | Path,
    *,
    kwargs: Mapping[str, Tensor] | None = None,
    format: str = "onnx",
    dynamic_shapes: Any = None,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
    opset: int = DEFAULT_OPSET,
    dtype: str = "fp32",
    functions: str | Sequence[type[nn.Module] | str] = "keep",
    form: str | None = None,
    approximant: str | None = None,
    squarings: str | int | None = None,
    target: str | None = None,
    external_data: bool = False,
    core: str = "float64",
    value_ranges: Mapping[str, Mapping[str, int]] | None = None,
    preprocessing: Mapping[str, Standardisation] | None = None,
    class_names: Sequence[str] | None = None,
    replace: bool = False,
    checked: bool = True,
    source: Mapping[str, Any] | None = None,
    progress: Listener | None = None,
) -> Artifact:
    """Write ``module`` to the folder ``out`` and return the artifact.

    Args:
        args, kwargs: example inputs, a single tensor or several; dynamic axes need a size of 2 or more in them.
        dynamic_shapes: {input name: {axis: name, or a torch.export.Dim with its range}}, or any other spelling that
            torch.export takes; the rest is fixed. Dim.AUTO and Dim.DYNAMIC get names in the manifest.
        value_ranges: {input name: {"min": 0, "max": 9}}, for inputs that hold ids; goes into the manifest.
        preprocessing: {input name: Standardisation}, the scaling of pixels before the module; it goes into
            the manifest, and `osa run` and the server's page apply it to pictures.
        class_names: names for the last axis of the logits (the output of that name, or the first); for the manifest.
        checked: False skips the comparison with eager, for callers that compare the artifact by other means.
        functions: "keep" or "inline" the functions of orthogonal attention in ONNX; or a list of classes of modules,
            as [Block] or ["package.module:Block"], whose calls become nodes of functions, too.
        form, approximant, squarings: for all attention layers; None keeps the module's own.
        target: a runtime by name (``osa_runtime.targets``), which chooses format, functions, squarings and core.
        core: "float32" leaves no float64 in an ONNX or pt2 graph with fixed squarings; its answers have two bits
            less, and are NaN where float32 cannot hold the digits.
        progress: called as (step, None) when a step starts and (step, seconds) when it is done.

    The artifact is written next to ``out`` and renamed when it has passed: it must agree with eager on the example
    and with every dynamic axis at other sizes.
    """
    settings = settings_for(
        target,
        format=format,
        opset=opset,
        dtype=dtype,
        functions=functions,
        form=form,
        approximant=approximant,
        squarings=squarings,
        external_data=external_data,
        core=core,
    )
    if settings.function_classes and settings.functions == "inline":
        warnings.warn(f"target={target!r} takes no functions: the classes in functions have no effect.", stacklevel=2)
    steps = Progress(progress)
    compiler = None if target is None or not checked else compiler_of(target)
    with steps.step("prepare the module"), torch.no_grad(), squarings_named(settings.squarings):
        inputs = positional(module, args, kwargs or {})
        shapes = spelled_out(module, inputs, dynamic_shapes)
        _check_types(module, inputs, settings.dtype)
        ready = prepared(module, settings)
        examples = describe_examples(ready, _in_type(inputs, settings.dtype), input_names, shapes)
        if examples.dimensions() and not allows_dynamic_axes(target):
            raise InputError(f"target={target!r} has fixed sizes only: leave out dynamic_shapes.")
        outputs = describe_outputs(ready, examples, output_names)
        with _as_input_errors():
            check_value_ranges(value_ranges or {}, examples.input_specs())
            check_preprocessing(preprocessing or {}, examples.input_specs())
            check_class_names(class_names or (), outputs)
        ranges, values = axis_ranges(examples), {name: dict(limits) for name, limits in (value_ranges or {}).items()}
        roles = find_roles(module, Interface(examples.input_specs(), outputs, ranges, values))
    names = tuple(output.name for output in outputs)
    with atomic_folder(out, replace=replace, marker=MANIFEST_FILE) as folder:
        chosen = FORMATS[settings.format]
        osa, attentions = chosen.part("writer")(ready, examples, names, settings, folder, steps)
        path = folder / chosen.file
        compiled = []
        if compiler is not None:
            with steps.step(f"compile {compiler.file}"):
                compiled.append(compile_program(path, compiler, examples.tensors))
        if checked:
            with steps.step("check the answers"):
                # Eager is the caller's module: a mistake in folding must show, too.
                eager = in_type(copy.deepcopy(module).eval(), settings)
                evaluation = ExponentialMethod() if osa is None else osa.evaluation
                for run in [artifact_runner(path), *compiled]:
                    written = Exported(run, settings.format, settings.dtype, rounding_depth(ready), evaluation)
                    check_answers(eager, written, examples, names, roles.batch)
        manifest = Manifest(
            format=settings.format,
            inputs=examples.input_specs(),
            outputs=outputs,
            parameters=sum(p.numel() for p in module.parameters()),
            axes=ranges,
            values=values,
            roles=roles,
            preprocessing={name: pixels.as_dict() for name, pixels in (preprocessing or {}).items()},
            dtype=settings.dtype,
            depth=rounding_depth(ready),
            opset=settings.opset if settings.format == "onnx" else None,
            functions=settings.functions if settings.format == "onnx" else None,
            osa=osa,
            attentions=attentions,
            files=describe_files(folder),
            source=dict(source or {}),
            versions=versions(),
            class_names=tuple(class_names or ()),
            export=record(settings, examples, target),
        )
        (folder / MANIFEST_FILE).write_text(manifest.to_json(), encoding="utf-8")
    return Artifact.open(out)


def _check_types(module: nn.Module, args: Sequence[Tensor], dtype: str) -> None:
    """Refuse wider parameters and inputs for an artifact in fp32."""
    if dtype != "fp32":
        return  # everything is converted
    wide = [name for name, parameter in module.named_parameters() if parameter.dtype == torch.float64]
    if wide:
        raise InputError(f"dtype='fp32': the module has float64 parameters ({wide[0]}); call module.float().")
    for index, x in enumerate(args):
        if isinstance(x, Tensor) and x.dtype == torch.float64:
            raise InputError(f"dtype='fp32': the example input {index} has float64 values; call x.float().")


@contextlib.contextmanager
def _as_input_errors() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise InputError(f"{error}.") from error


def _in_type(args: Sequence[Tensor], dtype: str) -> tuple[Tensor, ...]:
    if dtype != "fp16":
        return tuple(args)
    return tuple(x.half() if isinstance(x, Tensor) and x.is_floating_point() else x for x in args)
