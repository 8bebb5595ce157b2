"""The torch.export format: loops and branches as graph operators, so that the squarings stay data-dependent."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from osa_runtime.exporters.examples import Examples
from osa_runtime.exporters.folding import errors_naming_layers
from osa_runtime.exporters.manifest_entries import traced_settings
from osa_runtime.exporters.settings import ExportSettings
from osa_runtime.formats import FORMATS
from osa_runtime.manifest import AttentionCall, AttentionSettings
from osa_runtime.steps import Progress, quiet


def export_pt2(
    module: nn.Module,
    examples: Examples,
    _: tuple[str, ...],
    settings: ExportSettings,
    folder: Path,
    progress: Progress,
) -> tuple[AttentionSettings | None, tuple[AttentionCall, ...]]:
    """Write ``model.pt2`` into the folder; returns the OSA settings that the manifest records."""
    osa = traced_settings(module, examples.tensors, settings)
    save_pt2(module, examples, folder / FORMATS["pt2"].file, progress)
    return osa, ()


def save_pt2(module: nn.Module, examples: Examples, path: Path, progress: Progress) -> None:
    """Write a file that loads where this package is not installed."""

    def capture() -> torch.export.ExportedProgram:
        # Branches are compiled during capture, and their cache would apply the sizes of an earlier export as guards.
        torch.compiler.reset()
        return torch.export.export(module, examples.tensors, dynamic_shapes=examples.shapes(module))

    with progress.step("capture the graph"), torch.no_grad(), quiet(), errors_naming_layers(module, capture):
        program = capture()
    with progress.step("write the model"), quiet():
        _remove_stack_traces(program.graph_module)
        torch.export.save(program, path)


def _remove_stack_traces(graph_module: torch.fx.GraphModule) -> None:
    """Remove stack traces, which hold paths of this machine, also from branches and loop bodies."""
    for part in graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                node.meta.pop("stack_trace", None)
