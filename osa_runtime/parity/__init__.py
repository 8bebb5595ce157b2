"""Parity: how far an exported model may be from the eager one, and how far it is."""

from osa_runtime.parity.compare import Comparison, Tolerance, compare
from osa_runtime.parity.metrics import Metrics, measure
from osa_runtime.parity.tolerances import relative_tolerance

__all__ = ["Comparison", "Metrics", "Tolerance", "compare", "measure", "relative_tolerance"]
