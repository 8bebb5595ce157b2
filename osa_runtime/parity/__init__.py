"""Parity: how far an exported model may be from the eager one, and how far it is."""

from osa_runtime.parity.compare import Comparison, compare
from osa_runtime.parity.tolerances import relative_tolerance

__all__ = ["Comparison", "compare", "relative_tolerance"]
