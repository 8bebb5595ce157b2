"""The user's own module: a function builds it, a file holds its weights."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from osa_runtime.artifact import Artifact, sha256
from osa_runtime.atomic import check_apart
from osa_runtime.errors import CheckpointError, ExportError, InputError, MissingDependencyError
from osa_runtime.exporters.pipeline import export
from osa_runtime.pixels import FORMULA, Standardisation
from osa_runtime.recognition import FileKind, file_kind, not_a_checkpoint
from osa_runtime.targets import allows_dynamic_axes


def export_factory(
    factory: str, weights: str | Path | None, out: str | Path, *, static: bool = False, **options: Any
) -> Artifact:
    """Export what ``factory`` (package.module:function) returns: a module, its example inputs and its dynamic axes."""
    check_factory(factory, weights, out)
    built = load_factory(factory, weights)
    source: dict[str, Any] = {"factory": factory}
    if weights is not None:
        source["sha256"] = sha256(Path(weights))
    return export_built(built, out, static=static, source=source, **options)


def export_built(built: Built, out: str | Path, *, static: bool = False, **options: Any) -> Artifact:
    axes = None if static or not allows_dynamic_axes(options.get("target")) else built.axes
    return export(built.module, built.inputs, out, dynamic_shapes=axes, **(built.options | options))


def load_factory(factory: str, weights: str | Path | None) -> Built:
    """The result of the factory, with its weights."""
    built = build(factory)
    if weights is not None:
        _fill(built.module, Path(weights))
    return built


def check_factory(factory: str, weights: str | Path | None, out: str | Path | None = None) -> None:
    """Refuse before anything is built what can be refused by then."""
    find(factory)
    if weights is not None:
        if not Path(weights).is_file():
            raise CheckpointError(f"weights={weights} does not exist.")
        if file_kind(Path(weights)) is FileKind.PICKLE:
            raise not_a_checkpoint(Path(weights))
        if out is not None:
            check_apart(out, weights)


def _fill(module: nn.Module, path: Path) -> None:
    found, expected = _read(path), module.state_dict()
    for name, value in found.items():
        if name in expected and value.shape != expected[name].shape:
            shapes = f"{tuple(value.shape)}, expected {tuple(expected[name].shape)}"
            raise CheckpointError(f"{path} does not fit the module: {name} is {shapes}.")
    missing, unexpected = module.load_state_dict(found, strict=False)
    if missing or unexpected:
        raise CheckpointError(
            f"{path} does not fit the module: missing {list(missing)[:4] or 'none'}, "
            f"unexpected {list(unexpected)[:4] or 'none'}."
        )


def _read(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        # weights_only: a file of weights is data and must not run code.
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(f"weights={path} cannot be read as weights: {str(error).splitlines()[0]}") from error
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise CheckpointError(f"weights={path} holds {type(found).__name__}, expected a state_dict of tensors.")
    return found


SHAPE_OF_RESULT = "(module, example_inputs, axes), as in (model, (x,), {'x': {0: 'batch'}})"
DESCRIBING_OPTIONS = ("input_names", "output_names", "preprocessing", "value_ranges", "class_names")


@dataclass(frozen=True)
class Built:
    """The result of a factory. ``options`` are those of ``export`` that describe inputs and outputs."""

    module: nn.Module
    inputs: tuple[Tensor, ...]
    axes: Any  # as ``export`` takes ``dynamic_shapes``
    options: dict[str, Any]


def build(factory: str) -> Built:
    """Import and call package.module:function."""
    with _imports_from_here():
        function = _find(factory)
        try:
            result = function()
        except (Exception, SystemExit) as error:
            raise ExportError(f"factory={factory!r} raised {type(error).__name__}: {error}") from error
    return _checked(result, factory)


def find(factory: str) -> None:
    """Raise if the function cannot be found; it is not called."""
    with _imports_from_here():
        _find(factory)


@contextlib.contextmanager
def _imports_from_here() -> Iterator[None]:
    """Import from the working directory, as `python -m` does, also while the function is called."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(here)  # by value: the user's code may have put other folders before it


def _find(factory: str) -> Callable[[], Any]:
    module_name, _, name = factory.partition(":")
    if not module_name or not name:
        raise InputError(f"factory={factory!r}: expected package.module:function.")
    module = _import(module_name, factory)
    try:
        found = getattr(module, name)
    except AttributeError as error:
        raise InputError(f"factory={factory!r}: {module_name} has no {name!r}.") from error
    if not callable(found):
        raise InputError(f"factory={factory!r} is not a function, but {type(found).__name__}.")
    return found


def _import(name: str, factory: str) -> object:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise InputError(f"factory={factory!r}: there is no module {error.name!r}; run from its folder.") from error
        raise MissingDependencyError(
            f"factory={factory!r}: {name} imports {error.name!r}, which is not installed."
        ) from error
    except (Exception, SystemExit) as error:
        raise ExportError(f"factory={factory!r}: importing it failed: {type(error).__name__}: {error}") from error


def _checked(result: object, factory: str) -> Built:
    if not (isinstance(result, tuple) and len(result) in (3, 4) and isinstance(result[0], nn.Module)):
        raise ExportError(f"factory={factory!r} must return {SHAPE_OF_RESULT}, got {_kinds(result)}.")
    module, inputs, axes, options = (*result, {})[:4]
    examples = (inputs,) if isinstance(inputs, Tensor) else inputs
    tensors = isinstance(examples, Sequence) and bool(examples) and all(isinstance(x, Tensor) for x in examples)
    if not tensors:
        raise ExportError(f"factory={factory!r} must return {SHAPE_OF_RESULT}, got {_kinds(result)}.")
    if not isinstance(options, Mapping) or not set(options) <= set(DESCRIBING_OPTIONS):
        given = sorted(map(str, options)) if isinstance(options, Mapping) else type(options).__name__
        raise ExportError(
            f"factory={factory!r}: the fourth part may have {', '.join(DESCRIBING_OPTIONS)}, got {given}."
        )
    return Built(module, tuple(examples), axes, dict(options) | _pixels(options, factory))


def _pixels(options: Mapping[str, Any], factory: str) -> dict[str, Any]:
    """The preprocessing, which may be written as in a manifest, without the formula, which is always the same."""
    given = options.get("preprocessing") or {}
    try:
        return {"preprocessing": {name: _standardisation(said) for name, said in given.items()}} if given else {}
    except (AttributeError, TypeError, ValueError) as error:
        raise ExportError(
            f"factory={factory!r}: preprocessing is {given!r}, expected {{input: Standardisation}}: {error}."
        ) from error


def _standardisation(said: Any) -> Standardisation:
    if isinstance(said, Standardisation):
        return said
    return Standardisation.from_dict({"formula": FORMULA} | {key: list(value) for key, value in said.items()})


def _kinds(result: object) -> str:
    if not isinstance(result, tuple):
        return type(result).__name__
    return f"({', '.join(type(part).__name__ for part in result)})"
