"""Draws docs/idea.svg from real matrices: Q and K, the skew S, the orthogonal A, and the singular values of A.

Run it from the checkout: ``python docs/draw_idea.py``. The picture has a background of its own, so that it
reads the same on light and dark pages.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

N, D, CELL = 12, 4, 13  # tokens, head width, pixels per entry
TOP = 58
SIZE = N * CELL
INK, SOFT, BLUE, RED = "#1f2937", "#6b7280", "#2563eb", "#dc2626"
FONT = "font-family='Helvetica, Arial, sans-serif'"

Matrix = NDArray[np.float64]


def main() -> None:
    rng = np.random.default_rng(4)
    q, k = rng.standard_normal((2, N, D))
    s = 0.15 * (q @ k.T - k @ q.T) / np.sqrt(D)
    a = exponential(s)
    soft = np.exp(q @ k.T / np.sqrt(D))
    soft /= soft.sum(axis=1, keepdims=True)
    parts = [
        *heatmap(q, 34, "Q"), *heatmap(k, 34 + D * CELL + 16, "K"), caption(94, "queries and keys", "N × d"),
        *arrow(166, "skew"), *heatmap(s, 232, "S"), caption(310, "S = c (Q Kᵀ − K Qᵀ)", "skew: Sᵀ = −S"),
        *arrow(404, "exp"), *heatmap(a, 470, "A"), caption(548, "A = exp(S)", "orthogonal: AᵀA = I"),
        *arrow(642, "hence"), *spectrum(a, soft, 712), caption(790, "singular values", "all 1: no signal is lost"),
    ]  # fmt: skip
    Path(__file__).with_name("idea.svg").write_text(document(parts), encoding="utf-8")


def exponential(s: Matrix) -> Matrix:
    """Of a skew matrix, through the eigenvectors of the Hermitian iS."""
    values, vectors = np.linalg.eigh(1j * s)
    result: Matrix = ((vectors * np.exp(-1j * values)) @ vectors.conj().T).real
    return result


def document(parts: list[str]) -> str:
    title = "Queries and keys give a skew matrix S; its exponential A is orthogonal, so all its singular values are 1."
    frame = "<rect x='1' y='1' width='908' height='284' rx='14' fill='#fbfbfd' stroke='#c9ced6' stroke-width='1.5'/>"
    opening = "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 910 286' width='910' height='286' role='img'>"
    return "\n".join([opening, f"<title>{title}</title>", frame, *parts, "</svg>", ""])


def text(x: float, y: float, words: str, size: int = 14, colour: str = INK, style: str = "") -> str:
    return (
        f"<text x='{x}' y='{y}' {FONT} font-size='{size}' fill='{colour}' text-anchor='middle' {style}>{words}</text>"
    )


def caption(x: float, first: str, second: str) -> str:
    return text(x, TOP + SIZE + 28, first, 14) + text(x, TOP + SIZE + 48, second, 13, SOFT)


def colour(value: float) -> str:
    """White at 0, towards blue for positive and towards red for negative entries."""
    end = (37, 99, 235) if value > 0 else (220, 38, 38)
    strength = min(abs(value), 1.0) ** 0.8
    return "#" + "".join(f"{round(255 + (channel - 255) * strength):02x}" for channel in end)


def heatmap(matrix: Matrix, x: int, name: str) -> list[str]:
    scale = float(np.abs(matrix).max())
    cells = [
        f"<rect x='{x + j * CELL}' y='{TOP + i * CELL}' width='{CELL}' height='{CELL}' fill='{colour(value / scale)}'/>"
        for (i, j), value in np.ndenumerate(matrix)
    ]
    width = matrix.shape[1] * CELL
    border = f"<rect x='{x}' y='{TOP}' width='{width}' height='{SIZE}' fill='none' stroke='{SOFT}' stroke-width='1'/>"
    return [*cells, border, text(x + width / 2, TOP - 14, name, 18, INK, "font-style='italic' font-weight='bold'")]


def arrow(x: int, label: str) -> list[str]:
    y = TOP + SIZE / 2
    line = f"<path d='M{x} {y} h46' stroke='{INK}' stroke-width='2' fill='none'/>"
    head = f"<path d='M{x + 54} {y} l-11 -6 v12 z' fill='{INK}'/>"
    return [line, head, text(x + 25, y - 12, label, 14, INK, "font-style='italic'")]


def spectrum(a: Matrix, soft: Matrix, x: int) -> list[str]:
    """Singular values in falling order: of A, and of softmax attention on the same queries and keys."""
    base = TOP + SIZE
    axes = f"<path d='M{x} {TOP} V{base} H{x + SIZE}' stroke='{SOFT}' stroke-width='1.5' fill='none'/>"
    osa, softmax = (np.linalg.svd(m, compute_uv=False) for m in (a, soft))
    top = max(float(softmax[0]), 1.0) * 1.25
    return [
        axes,
        text(x - 12, base - SIZE / top + 5, "1", 13, SOFT), text(x - 12, base + 4, "0", 13, SOFT),
        *curve(osa / top, x, BLUE), *curve(softmax / top, x, RED),
        text(x + 104, base - SIZE / top - 12, "OSA", 13, BLUE, "font-weight='bold'"),
        text(x + 104, base - 34, "softmax", 13, RED, "font-weight='bold'"),
    ]  # fmt: skip


def curve(heights: Matrix, x: int, stroke: str) -> list[str]:
    points = [(x + 8 + i * (SIZE - 16) / (N - 1), TOP + SIZE * (1 - h)) for i, h in enumerate(heights)]
    path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
    dots = [f"<circle cx='{px:.1f}' cy='{py:.1f}' r='3' fill='{stroke}'/>" for px, py in points]
    return [f"<polyline points='{path}' fill='none' stroke='{stroke}' stroke-width='1.5'/>", *dots]


if __name__ == "__main__":
    main()
