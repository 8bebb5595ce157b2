"""The torch.export format: loops and branches as graph operators, so that the squarings stay data-dependent."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from osa_runtime.artifact import MODEL_FILES
from osa_runtime.exporters.blame import blame
from osa_runtime.exporters.examples import Examples
from osa_runtime.exporters.progress import Progress
from osa_runtime.exporters.quiet import quiet


def export_pt2(module: nn.Module, examples: Examples, folder: Path, progress: Progress) -> None:
    """Write ``model.pt2``; it loads where this package is not installed."""

    def capture() -> torch.export.ExportedProgram:
        # Branches are compiled on the way, and their cache would pass on the sizes of an earlier export as guards.
        torch.compiler.reset()
        return torch.export.export(module, examples.tensors, dynamic_shapes=examples.shapes(module))

    with progress.step("capture the graph"), torch.no_grad(), quiet(), blame(module, capture):
        program = capture()
    with progress.step("write the model"), quiet():
        _remove_stack_traces(program.graph_module)
        torch.export.save(program, folder / MODEL_FILES["pt2"])


def _remove_stack_traces(graph_module: torch.fx.GraphModule) -> None:
    """They hold paths of this machine; branches and loop bodies have their own."""
    for part in graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                node.meta.pop("stack_trace", None)
