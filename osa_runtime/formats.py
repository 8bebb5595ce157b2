"""The formats of a model file, and the code that writes, runs and reads each of them.

The parts are named here and imported when they are needed: most of them need torch.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from operator import attrgetter
from typing import Any


@dataclass(frozen=True)
class Format:
    name: str
    file: str  # in an exported folder
    writer: str  # (module, examples, output names, settings, folder, progress) → OSA settings and attention calls
    session: str  # (source, settings) → Session
    model_parts: str  # (session, threads) → ModelParts, the parts that verification feeds one by one
    graph: str  # (path) → the graph that verification compares with a fresh export

    def part(self, which: str) -> Any:
        """Import the function or class that the field ``which`` names."""
        module, _, name = str(getattr(self, which)).partition(":")
        return attrgetter(name)(importlib.import_module(f"osa_runtime.{module}"))


FORMATS = {
    found.name: found
    for found in (
        Format(
            "onnx",
            "model.onnx",
            writer="exporters.onnx_export:export_onnx",
            session="runtime.onnx_session:OnnxSession",
            model_parts="verification.inside.onnx_parts:OnnxParts.of",
            graph="verification.structure.onnx_graph:read_onnx_model",
        ),
        Format(
            "torchscript",
            "model.pt",
            writer="exporters.torch_exports:export_torchscript",
            session="runtime.torch_session:TorchSession",
            model_parts="verification.inside.torchscript_parts:TorchScriptParts.of",
            graph="verification.structure.script_graph:read_script",
        ),
        Format(
            "pt2",
            "model.pt2",
            writer="exporters.torch_exports:export_pt2",
            session="runtime.torch_session:TorchSession",
            model_parts="verification.inside.pt2_parts:Pt2Parts.of",
            graph="verification.structure.pt2_graph:read_pt2",
        ),
    )
}
