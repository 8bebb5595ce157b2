"""The TorchScript format: ``torch.jit.script``, which keeps the data-dependent number of squarings."""

from __future__ import annotations

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
        scripted.save(str(folder / MODEL_FILES["torchscript"]))
