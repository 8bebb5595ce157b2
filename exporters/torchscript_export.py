"""The TorchScript format: ``torch.jit.script``, which keeps the data-dependent number of squarings."""

from __future__ import annotations

import zipfile
from pathlib import Path

import torch
from torch import nn

from osa_runtime.artifact import MODEL_FILES
from osa_runtime.exporters.progress import Progress
from osa_runtime.exporters.quiet import quiet


def export_torchscript(module: nn.Module, folder: Path, progress: Progress) -> None:
    """Write ``model.pt``; it loads where this package is not installed."""
    with progress.step("compile the module with TorchScript"), quiet():
        scripted = torch.jit.script(module)
    with progress.step("write the model"), quiet():
        path = folder / MODEL_FILES["torchscript"]
        scripted.save(str(path))
        _remove_debug_records(path)


def _remove_debug_records(path: Path) -> None:
    """Drop the optional records that map the code back to source files: they hold paths of this machine."""
    whole = path.with_suffix(".whole")
    path.rename(whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as target:
        for entry in source.infolist():
            if not entry.filename.endswith(".debug_pkl"):
                target.writestr(entry.filename, source.read(entry))
    whole.unlink()
