"""The contents of an exported artifact or any ONNX file: a description, missing kernels, a drawing. Nothing is run."""

from osa_runtime.inspection.inspecting import Inspection, inspect_artifact

__all__ = ["Inspection", "inspect_artifact"]
