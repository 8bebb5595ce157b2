"""What a model file without a manifest was probably exported with."""

from __future__ import annotations

from dataclasses import replace

from osa_runtime.artifact import Manifest
from osa_runtime.verification.subject import Subject


def guessed_manifest(subject: Subject) -> Manifest:
    """What the file shows, and the defaults for the rest."""
    known = Manifest(subject.format, subject.inputs, subject.session.outputs, 0, dtype=subject.dtype)
    if subject.format != "onnx":
        return known
    from osa_runtime.exporters.settings import OPSETS
    from osa_runtime.onnx_files import read_onnx

    model = read_onnx(subject.session.path)
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), None)
    if opset not in OPSETS:
        opset = None  # weights can be compared all the same
    kept = any(node.domain not in ("", "ai.onnx") for node in model.graph.node)
    return replace(known, opset=opset, functions="keep" if kept else "inline")
