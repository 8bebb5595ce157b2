"""What a layer of ours makes of ‖S‖₂: its bound and its number of squarings."""

from __future__ import annotations

import torch
from torch import Tensor

from osa_runtime.exponential import Evaluation
from osa_runtime.ops.dense import skew_matrix, skew_norm
from osa_runtime.ops.lowrank import core_norm, gram_core, sheared
from osa_runtime.ops.scaling import reach, squarings_needed


def squarings_of(q: Tensor, k: Tensor, scale: Tensor, evaluation: Evaluation) -> tuple[int, float]:
    """How many squarings these queries and keys ask for, and the upper bound of ‖S‖₂ that says so."""
    c = scale.to(torch.float64)[..., None, None]
    form, approximant = evaluation.form, evaluation.approximant
    dense = form == "dense" or (form != "lowrank" and q.size(-2) <= 2 * q.size(-1))
    if dense:
        s = skew_matrix(q.to(torch.float64), k.to(torch.float64), c)
        norm = skew_norm(s @ s)
    else:
        q64, k64 = q.to(torch.float64), k.to(torch.float64)
        m, _, _ = gram_core(q64, sheared(q64, k64), q64, c)
        norm = core_norm(m @ m)
    theta = reach(approximant, "dense" if dense else "lowrank", False)
    count = squarings_needed(norm, theta, False)
    return int(count), float(norm.amax())
