"""Checks that only OSA allows, in every layer and head: A is orthogonal, keeps lengths, and is exp(S).

They need no reference model: the queries, keys and values are taken from the model's own run, and the truth is
the definition, exp(S)·V in float64 from eigenvalues.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from osa_runtime.errors import ExponentRangeError, RunError
from osa_runtime.exponential import ExponentialMethod
from osa_runtime.exporters.eager import exact_attention
from osa_runtime.manifest import AttentionSettings
from osa_runtime.ops.coefficients import LARGEST_AMPLIFICATION_ALONE, LARGEST_TERMS_ALONE
from osa_runtime.ops.dense import skew_matrix, skew_norm
from osa_runtime.ops.lowrank import core_norm, gram_core, precision_level, sheared
from osa_runtime.ops.rounding import gram_amplification, is_in_doubt
from osa_runtime.ops.scaling import reach, squarings_needed
from osa_runtime.ops.spectral_norm import masked, spectral_norm
from osa_runtime.parity.certificate import CaseResult, HeadResult, LayerResult
from osa_runtime.parity.feeds import Case
from osa_runtime.parity.tolerances import DEFECT_SHARE, STRETCH_SHARE, core_tolerance
from osa_runtime.verification.inside.model_parts import Array, Core, ModelParts, chunks

MOST_TOKENS = 512  # up to here A is formed whole; beyond, it is probed in as many directions as a head is wide

Party = Literal["artifact", "eager", "reference"]


def check_layers(
    model_parts: ModelParts, case: Case, osa: AttentionSettings | None, dtype: str, party: Party
) -> Iterator[LayerResult]:
    """Check all attention layers on one case, a few at a time, up to the first with NaN, which spreads to the rest."""
    for names in chunks(model_parts.attentions, _core_bytes(model_parts, case)):
        for name, core in model_parts.cores_of(names, case.feeds).items():
            result = _check(model_parts, name, core, case.name, osa, dtype, party)
            yield result
            if not np.isfinite(core.out).all():
                return


def norms_by_row(model_parts: ModelParts, case: Case) -> Array | None:
    """The largest ‖S‖₂ of any layer, by row; None if no layer shows it, and NaN for a row without a number."""
    found: Array | None = None
    for names in chunks(model_parts.attentions, _core_bytes(model_parts, case)):
        for core in model_parts.cores_of(names, case.feeds).values():
            q, k, scale, _ = _tensors(core)
            norms = spectral_norm(q, k, scale).flatten(1).amax(1).numpy()
            found = norms if found is None else np.fmax(found, norms)  # after a layer of NaN there is only NaN
    return found


def _core_bytes(model_parts: ModelParts, case: Case) -> int:
    if not model_parts.attentions:
        return 1
    core = model_parts.cores_of(model_parts.attentions[:1], case.feeds)[model_parts.attentions[0]]
    return 4 * core.q.nbytes


def _count(core: Core, evaluation: ExponentialMethod, needed: int) -> int:
    """The squarings: as the artifact counts them, else the fixed number of the export, else by the formula."""
    if core.squarings is not None:
        return core.squarings
    return int(evaluation.squarings) if evaluation.is_fixed else needed


def _check(
    model_parts: ModelParts, name: str, core: Core, case: str, osa: AttentionSettings | None, dtype: str, party: Party
) -> LayerResult:
    q, k, scale, _ = _tensors(core)
    norms = spectral_norm(q, k, scale)
    evaluation = ExponentialMethod() if osa is None else osa.evaluation
    squarings, bound = squarings_of(q, k, scale, evaluation)
    largest = None if osa is None else osa.largest_norm
    common: dict[str, Any] = dict(
        layer=name,
        party=party,
        case=case,
        squarings=_count(core, evaluation, squarings),
        bound=bound,
        largest_norm=largest,
        tolerance=core_tolerance(dtype, float(norms.max()), "float64" if osa is None else osa.core),
    )
    if not np.isfinite(core.out).all() or (largest is not None and float(norms.max()) > largest):
        return _out_of_range(core, common, osa is not None and osa.core == "float32")
    try:
        heads, directions = _heads(model_parts, name, core, norms)
    except (RunError, ExponentRangeError) as error:
        return LayerResult(**common, heads=(), passed=False, reason=str(error))
    reason = _reason(heads, common["tolerance"])
    return LayerResult(
        **common, heads=heads, passed=not reason, reason=reason or "orthogonal, and exp(S)·V", directions=directions
    )


def _out_of_range(core: Core, common: dict[str, Any], float32_alone: bool) -> LayerResult:
    """Check a layer beyond its range: a graph cannot raise, so it must return NaN and not a number that looks right.

    The bound that it computes itself may be up to twice ours: it balances Q and K by another measure.
    """
    bound, largest = common["bound"], common["largest_norm"]
    broken = int(np.count_nonzero(~np.isfinite(core.out)))
    clean = all(np.isfinite(x).all() for x in (core.q, core.k, core.v))
    if largest is not None and clean and 2 * bound > largest:
        said = f"‖S‖ is bounded by {bound:.3g}, and it is exported for {largest:.3g}"
        reason = f"{said}: it returns NaN, as it must" if broken else f"{said}, but it returns finite values"
        return LayerResult(**common, heads=(), passed=bool(broken), reason=reason)
    if float32_alone and clean and _cancels_beyond_float32(core):
        reason = "S has lost its digits in float32, and the graph has no float64: it returns NaN, as it must"
        return LayerResult(**common, heads=(), passed=True, reason=reason)
    cause = "its output" if clean else "its input"
    return LayerResult(**common, heads=(), passed=False, reason=f"{cause} holds NaN or Inf")


def _cancels_beyond_float32(core: Core) -> bool:
    """True if an entry exceeds half a limit of graphs in float32 alone; they estimate what is exact here."""
    q, k, scale, _ = _tensors(core)
    c = scale[..., None, None]
    terms = torch.linalg.matrix_norm(q) * torch.linalg.matrix_norm(k) * scale.abs()
    m, _, _ = gram_core(q, sheared(q, k), q, c)
    amplification = gram_amplification(m, core_norm(m @ m))
    return bool((terms > LARGEST_TERMS_ALONE / 2).any() | (amplification > LARGEST_AMPLIFICATION_ALONE / 2).any())


def _heads(model_parts: ModelParts, name: str, core: Core, norms: Tensor) -> tuple[tuple[HeadResult, ...], int | None]:
    count = core.q.shape[-3] if core.q.ndim > 3 else 1  # a call without a head axis has one head
    defects, directions = _defects(model_parts, name, core)
    defects, ratios, errors = (values.reshape(-1, count) for values in (defects, _ratios(core), _errors(core)))
    norms = norms.reshape(-1, count)
    heads = tuple(
        HeadResult(
            defect=float(defects[:, h].max()),
            ratio_low=float(ratios[:, h].min()),
            ratio_high=float(ratios[:, h].max()),
            norm=float(norms[:, h].max()),
            error=float(errors[:, h].max()),
        )
        for h in range(count)
    )
    return heads, directions


def _defects(model_parts: ModelParts, name: str, core: Core) -> tuple[Array, int | None]:
    """‖AᵀA − I‖₂ for each entry and head, with A computed by the layer itself, in blocks of columns."""
    tokens, width = core.v.shape[-2:]
    if tokens > MOST_TOKENS:
        frame = np.linalg.qr(np.random.default_rng(0).standard_normal((tokens, width)))[0]
        a, directions = _apply_attention(model_parts, name, core, frame), width
        gram_of_frame = frame.T @ frame
    else:
        blocks = [
            _apply_attention(model_parts, name, core, np.eye(tokens)[:, i : i + width]) for i in range(0, tokens, width)
        ]
        a, directions = np.concatenate(blocks, -1), None
        gram_of_frame = np.eye(tokens)
    gram = np.swapaxes(a, -1, -2) @ a - gram_of_frame
    return np.abs(np.linalg.eigvalsh(gram)).max(-1), directions


def _apply_attention(model_parts: ModelParts, name: str, core: Core, columns: Array) -> Array:
    """A times these columns, which are padded to the width of the layer's own values."""
    count, width = columns.shape[1], core.v.shape[-1]
    filled = np.pad(columns, ((0, 0), (0, width - count)))
    v = np.ascontiguousarray(np.broadcast_to(filled, core.v.shape).astype(core.v.dtype))
    out = model_parts.apply_attention(name, core, v)[..., :count].astype(np.float64)
    if not np.isfinite(out).all():
        raise RunError(f"exp(S) of {name} holds NaN or Inf for queries and keys of its own run.")
    return out


def _ratios(core: Core) -> Array:
    v, out = core.v.astype(np.float64), core.out.astype(np.float64)
    if core.mask is not None:
        real = np.broadcast_to(core.mask, v.shape[:-1])[..., None]
        v, out = np.where(real, v, 0.0), np.where(real, out, 0.0)
    lengths = np.linalg.norm(v, axis=(-2, -1))
    return np.where(lengths > 0, np.linalg.norm(out, axis=(-2, -1)) / np.maximum(lengths, 1e-300), 1.0)


def _errors(core: Core) -> Array:
    """The distance of the layer's output from exp(S)·V, relative to the largest value of the head.

    A node that is a whole layer has Q, K and V in float64 where it folds, and rounds them where it does not: it must
    be right for one of the two.
    """
    errors = _errors_of(core)
    if core.rounded is None:
        return errors
    q, k, v = core.rounded
    return np.minimum(errors, _errors_of(dataclasses.replace(core, q=q, k=k, v=v)))


def _errors_of(core: Core) -> Array:
    q, k, scale, mask = _tensors(core)
    v = torch.from_numpy(core.v).to(torch.float64)
    truth = exact_attention(q, k, v, scale, mask).numpy()
    distance = np.abs(core.out.astype(np.float64) - truth)
    if core.mask is not None:
        distance = np.where(np.broadcast_to(core.mask, distance.shape[:-1])[..., None], distance, 0.0)
    return distance.max((-2, -1)) / np.maximum(np.abs(truth).max((-2, -1)), 1e-300)


def _reason(heads: tuple[HeadResult, ...], tolerance: float) -> str:
    """The reason for a failure, or "". Lengths sum N·d values and the defect N rows: both stay in proportion."""
    if not all(math.isfinite(number) for head in heads for number in dataclasses.astuple(head)):
        return "a head cannot be measured: its distance from exp(S)·V is not a finite number"
    worst = max(heads, key=lambda head: head.error)
    if worst.error > tolerance:
        return f"head {heads.index(worst)} is not exp(S)·V: relative error {worst.error:.2g}, tolerance {tolerance:.2g}"
    worst = max(heads, key=lambda head: head.defect)
    if worst.defect > DEFECT_SHARE * tolerance:
        head, most = heads.index(worst), DEFECT_SHARE * tolerance
        return f"head {head} is not orthogonal: ‖AᵀA − I‖ is {worst.defect:.2g}, tolerance {most:.2g}"
    worst = max(heads, key=lambda head: max(abs(head.ratio_low - 1), abs(head.ratio_high - 1)))
    if max(abs(worst.ratio_low - 1), abs(worst.ratio_high - 1)) > STRETCH_SHARE * tolerance:
        head, low, high = heads.index(worst), worst.ratio_low, worst.ratio_high
        return f"head {head} does not keep lengths: ‖Av‖/‖v‖ is {low:.7f} to {high:.7f}"
    return ""


def _tensors(core: Core) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """q, k, the scale and the mask in float64, with padded tokens at zero and one scale per entry and head."""
    mask = None if core.mask is None else torch.from_numpy(np.array(np.broadcast_to(core.mask, core.q.shape[:-1])))
    q, k = (masked(torch.from_numpy(np.array(x)).to(torch.float64), mask) for x in (core.q, core.k))
    scale = torch.from_numpy(np.array(np.broadcast_to(core.scale, core.q.shape[:-2]), np.float64))
    return q, k, scale, mask


def squarings_of(q: Tensor, k: Tensor, scale: Tensor, evaluation: ExponentialMethod) -> tuple[int, float]:
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


def _takes_steps(q: Tensor, k: Tensor, c: Tensor, evaluation: ExponentialMethod) -> bool:
    """True if the low-rank form stays in float32, where it takes steps of a polynomial instead of squarings."""
    if evaluation.is_fixed or evaluation.approximant == "pade":
        return False
    m, w, _ = gram_core(q, k, q, c)
    norm = core_norm(m @ m)
    return int(precision_level(norm, is_in_doubt(m, w, norm))) < 2


def undecided_beyond_range(
    result: CaseResult, case: Case, model_parts: ModelParts, osa: AttentionSettings | None, dtype: str
) -> CaseResult:
    """The same result, undecided if a layer received more than it was exported for and returned NaN."""
    if result.verdict != "fail" or not all(output.name for output in result.outputs):
        return result
    layers = check_layers(model_parts, case, osa, dtype, "artifact")
    reason = next((f"{layer.layer}: {layer.reason}" for layer in layers if layer.passed and not layer.heads), None)
    if reason is None:
        return result
    return undecided(result, reason)


def undecided(result: CaseResult, reason: str) -> CaseResult:
    """The same result, with failed outputs undecided for this reason."""
    outputs = (
        dataclasses.replace(output, verdict="undecided", reason=reason) if output.verdict == "fail" else output
        for output in result.outputs
    )
    return dataclasses.replace(result, outputs=tuple(outputs))
