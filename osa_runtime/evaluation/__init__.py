"""The accuracy of an artifact or a checkpoint on labelled data. ONNX artifacts need no torch."""

from __future__ import annotations

from osa_runtime.evaluation.evaluating import evaluate
from osa_runtime.parity.evaluation import Evaluation

__all__ = ["Evaluation", "evaluate"]
