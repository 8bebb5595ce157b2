"""Export a module of one's own: a function builds it, a file fills its weights."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from osa_runtime.artifact import Artifact, sha256
from osa_runtime.errors import CheckpointError, ExportError, InputError
from osa_runtime.exporters.pipeline import export

SHAPE_OF_RESULT = "(module, example_inputs, axes), as in (model, (x,), {'x': {0: 'batch'}})"


def export_factory(
    factory: str, weights: str | Path | None, out: str | Path, *, static: bool = False, **options: Any
) -> Artifact:
    """``factory`` is package.module:function, which returns the module, its example inputs and its dynamic axes."""
    module, inputs, axes = _call(_find(factory), factory)
    source: dict[str, Any] = {"factory": factory}
    if weights is not None:
        _fill(module, Path(weights))
        source["sha256"] = sha256(Path(weights))
    return export(module, inputs, out, dynamic_shapes=None if static else axes, source=source, **options)


def _find(factory: str) -> Callable[[], Any]:
    module_name, _, name = factory.partition(":")
    if not module_name or not name:
        raise InputError(f"--factory is {factory!r}, expected package.module:function.")
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` does, so that a script beside the user is found
    try:
        found = getattr(importlib.import_module(module_name), name)
    except ModuleNotFoundError as error:
        raise InputError(f"--factory {factory}: there is no module {error.name!r}; run from its folder.") from error
    except AttributeError as error:
        raise InputError(f"--factory {factory}: {module_name} has no {name!r}.") from error
    except Exception as error:
        raise ExportError(f"--factory {factory}: importing it failed: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    if not callable(found):
        raise InputError(f"--factory {factory} is not a function.")
    return found


def _call(function: Callable[[], Any], factory: str) -> tuple[nn.Module, tuple[Tensor, ...], dict[str, Any]]:
    try:
        result = function()
    except Exception as error:
        raise ExportError(f"--factory {factory} raised {type(error).__name__}: {error}") from error
    valid = isinstance(result, tuple) and len(result) == 3 and isinstance(result[0], nn.Module)
    if not valid:
        raise ExportError(f"--factory {factory} must return {SHAPE_OF_RESULT}, got {type(result).__name__}.")
    module, inputs, axes = result
    return module, (inputs,) if isinstance(inputs, Tensor) else tuple(inputs), dict(axes or {})


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
    if not path.is_file():
        raise CheckpointError(f"--weights {path} does not exist.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        # weights_only: a file of weights is data and must not run code.
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(f"--weights {path} cannot be read as weights: {str(error).splitlines()[0]}") from error
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise CheckpointError(f"--weights {path} holds {type(found).__name__}, expected a state_dict of tensors.")
    return found
