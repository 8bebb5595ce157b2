"""Quantised models that are wrong, by more than quantisation explains or in their graph."""

from __future__ import annotations

import numpy as np
from sabotaged import BLOCK, Sabotage
from sabotages_onnx import LARGE, NEGATE, ROWS, at, operator, weight

INT8, STATIC, DYNAMIC = ({"format": kind} for kind in ("int8", "int8, static", "int8, dynamic"))


def one_step(array: np.ndarray) -> np.ndarray:
    array.flat[5] += 1 if array.flat[5] < 0 else -1
    return array


def wider_channel(scale: np.ndarray) -> np.ndarray:
    scale.flat[2] *= 1.01
    return scale


def no_scale(scale: np.ndarray) -> np.ndarray:
    """One for all channels, as a quantisation by tensor has it."""
    return np.full_like(scale, scale.max())


OF_QUANTISED = [
    Sabotage(
        "an 8-bit model × 1000 for large inputs",
        "vit",
        at("logits", LARGE + "k = Constant <value_float = 1000.0> () n = Mul (x, k) y = Where (c, n, x)"),
        "logits",
        INT8,
    ),
    Sabotage(
        "logits of an 8-bit model negated for batches above 8", "vit", at("logits", ROWS + NEGATE), "logits", INT8
    ),
    Sabotage(
        "one 8-bit weight off by one step",
        "vit",
        weight(f"{BLOCK}.mlp.expand/MatMul.weight_quantized", one_step),
        f"{BLOCK}.mlp",
        INT8,
    ),
    Sabotage(
        "another scale of one channel",
        "vit",
        weight(f"{BLOCK}.mlp.contract/MatMul.weight_scale", wider_channel),
        f"{BLOCK}.mlp",
        INT8,
    ),
    Sabotage(
        "one scale for all channels",
        "vit",
        weight(f"{BLOCK}.attention.out/MatMul.weight_scale", no_scale),
        f"{BLOCK}.attention",
        INT8,
    ),
    Sabotage("another scale of an activation", "vit", weight("Add_scale", lambda s: 1.01 * s), "Add_scale", STATIC),
    Sabotage("a zero point off by one", "vit", weight("Add_zero_point", lambda z: z + 1), "Add_zero_point", STATIC),
    Sabotage(
        "NaN taken for a number",
        "vit",
        operator("embed/MatMul_carried", "Identity", lambda inputs: inputs[:1]),
        "embed",
        STATIC,
    ),
    Sabotage(
        "one weight of dynamic products off by one step",
        "vit",
        weight(f"{BLOCK}.mlp.expand/MatMul.weight_quantized", one_step),
        f"{BLOCK}.mlp.expand",
        DYNAMIC,
    ),
    Sabotage(
        "another zero point of weights",
        "vit",
        weight(f"{BLOCK}.mlp.expand/MatMul.weight_zero_point", lambda z: z + 1),
        "zero_point",
        DYNAMIC,
    ),
]
