"""The bound of ‖S‖₂ and the number of squarings of a layer of ours."""

from __future__ import annotations

import torch
from torch import Tensor

from osa_runtime.exponential import Evaluation
from osa_runtime.ops.dense import skew_matrix, skew_norm
from osa_runtime.ops.lowrank import core_norm, gram_core, precision_level, sheared
from osa_runtime.ops.rounding import is_in_doubt
from osa_runtime.ops.scaling import reach, squarings_needed


def squarings_of(q: Tensor, k: Tensor, scale: Tensor, evaluation: Evaluation) -> tuple[int, float]:
    """The number of squarings that these queries and keys need, and the upper bound of ‖S‖₂ that decides it."""
    q64, k64, c = q.to(torch.float64), k.to(torch.float64), scale.to(torch.float64)[..., None, None]
    dense = evaluation.form == "dense" or (evaluation.form == "auto" and q.size(-2) <= 2 * q.size(-1))
    if dense:
        s = skew_matrix(q64, k64, c)
        norm = skew_norm(s @ s)
    else:
        m, _, _ = gram_core(q64, sheared(q64, k64), q64, c)
        norm = core_norm(m @ m)
    if not dense and _takes_steps(q.to(torch.float32), k.to(torch.float32), c.to(torch.float32), evaluation):
        return 0, float(norm.amax())
    theta = reach(evaluation.approximant, "dense" if dense else "lowrank", False)
    return int(squarings_needed(norm, theta, False)), float(norm.amax())


def _takes_steps(q: Tensor, k: Tensor, c: Tensor, evaluation: Evaluation) -> bool:
    """Whether the low-rank form stays in float32, where it takes steps of a polynomial instead of squarings."""
    if evaluation.is_fixed or evaluation.approximant == "pade":
        return False
    m, w, _ = gram_core(q, k, q, c)
    norm = core_norm(m @ m)
    return int(precision_level(norm, is_in_doubt(m, w, norm))) < 2
