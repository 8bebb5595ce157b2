"""Parity: how far an exported model may be from the eager one, and how far it is."""

from osa_runtime.parity.comparison import Comparison, Metrics, Tolerance, compare_arrays, measure
from osa_runtime.parity.tolerances import relative_tolerance

__all__ = ["Comparison", "Metrics", "Tolerance", "compare_arrays", "measure", "relative_tolerance"]
