"""The contents of an exported artifact or any ONNX file: facts, missing kernels, a drawing. Nothing is run."""

from osa_runtime.inspection.facts import Inspection, inspect_artifact

__all__ = ["Inspection", "inspect_artifact"]
