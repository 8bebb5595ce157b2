"""Export a module of one's own: a function builds it, a file fills its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from osa_runtime.artifact import Artifact, sha256
from osa_runtime.errors import CheckpointError
from osa_runtime.exporters.destination import check_apart
from osa_runtime.exporters.factory import Built, build, find
from osa_runtime.exporters.pipeline import export
from osa_runtime.file_kinds import FileKind, file_kind
from osa_runtime.recognition import not_a_checkpoint


def export_factory(
    factory: str, weights: str | Path | None, out: str | Path, *, static: bool = False, **options: Any
) -> Artifact:
    """``factory`` is package.module:function, which returns the module, its example inputs and its dynamic axes."""
    check_factory(factory, weights, out)
    built = load_factory(factory, weights)
    source: dict[str, Any] = {"factory": factory}
    if weights is not None:
        source["sha256"] = sha256(Path(weights))
    return export_built(built, out, static=static, source=source, **options)


def export_built(built: Built, out: str | Path, *, static: bool = False, **options: Any) -> Artifact:
    axes = None if static else built.axes
    return export(built.module, built.inputs, out, dynamic_shapes=axes, **(built.facts | options))


def load_factory(factory: str, weights: str | Path | None) -> Built:
    """What the factory returns, with its weights."""
    built = build(factory)
    if weights is not None:
        _fill(built.module, Path(weights))
    return built


def check_factory(factory: str, weights: str | Path | None, out: str | Path | None = None) -> None:
    """What can be refused before anything is built."""
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
