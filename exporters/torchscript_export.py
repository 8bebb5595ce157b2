"""The TorchScript format: ``torch.jit.script``, which keeps the data-dependent number of squarings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from osa_runtime.errors import ExportError
from osa_runtime.exporters.attention_settings import traced_settings
from osa_runtime.exporters.capturing import reason
from osa_runtime.exporters.examples import Examples
from osa_runtime.exporters.script_archive import rewrite
from osa_runtime.exporters.settings import ExportSettings
from osa_runtime.formats import FORMATS
from osa_runtime.manifest import AttentionCall, AttentionSettings
from osa_runtime.steps import Progress, quiet


def export_torchscript(
    module: nn.Module,
    examples: Examples,
    _: tuple[str, ...],
    settings: ExportSettings,
    folder: Path,
    progress: Progress,
) -> tuple[AttentionSettings | None, tuple[AttentionCall, ...]]:
    """Write ``model.pt``, which loads where this package is not installed; returns the settings for the manifest."""
    osa = traced_settings(module, examples.tensors, settings)
    with progress.step("compile the module with TorchScript"), quiet():
        scripted = _script(module)
    with progress.step("write the model"), quiet():
        path = folder / FORMATS["torchscript"].file
        whole = path.with_suffix(".whole")
        scripted.save(str(whole))
        rewrite(whole, path)
        whole.unlink()
    return osa, ()


def _script(module: nn.Module) -> torch.jit.ScriptModule:
    try:
        return torch.jit.script(module)
    except Exception as error:
        layer = _culprit(module, reason(error))
        where = f" in the layer '{layer}'" if layer else ""
        raise ExportError(f"torch cannot capture the model{where}: {reason(error)}") from error


def _culprit(module: nn.Module, why: str) -> str:
    """The deepest layer that cannot be compiled by itself; preferably for the same reason as the whole."""
    failures = [(found == why, path.count("."), path) for path, found in _failures(module)]
    return max(failures, key=lambda failure: failure[:2], default=(False, 0, ""))[2]


def _failures(module: nn.Module) -> Iterator[tuple[str, str]]:
    for path, layer in module.named_modules():
        if path:
            try:
                torch.jit.script(layer)
            except Exception as error:  # noqa: BLE001 - any failure counts
                yield path, reason(error)
