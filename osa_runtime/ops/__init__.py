"""The operators: orthogonal attention and the skew exponential, in matrix products only.

``README.md`` next to this file derives them. ``reference`` is the slow float64 definition they are tested against.
"""

from osa_runtime.ops import reference
from osa_runtime.ops.attention import attention_matrix, orthogonal_attention, skew_exponential

__all__ = ["attention_matrix", "orthogonal_attention", "reference", "skew_exponential"]
