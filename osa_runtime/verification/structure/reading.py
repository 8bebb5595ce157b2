"""The model file of each format, as a graph to compare."""

from __future__ import annotations

from pathlib import Path

from osa_runtime.verification.structure.graph import Model


def read_model(path: Path, kind: str) -> Model:
    """Raises MalformedGraphError for a file that can be read in more than one way."""
    if kind == "onnx":
        from osa_runtime.verification.structure.onnx_graph import read_onnx_model as read
    elif kind == "pt2":
        from osa_runtime.verification.structure.pt2_graph import read_pt2 as read
    else:
        from osa_runtime.verification.structure.script_graph import read_script as read
    return read(path)
