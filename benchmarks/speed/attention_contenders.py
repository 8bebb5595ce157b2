"""The contenders of the operator benchmark, opened once for each width, ready to be called at any point."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from osa_runtime import orthogonal_attention
from osa_runtime.benchmarking.rotation import Call
from speed import attention_peers as peers
from speed.attention_inputs import HEADS, Inputs, Point, make_inputs, relative_error
from speed.contest import Contest, Pace, compete, fastest
from speed.exported_operator import PACKED, SEPARATE, export_operator

EAGER = "ours, eager"
PAPER, DENSE = "paper, eager", "matrix_exp, eager"
SOFTMAX, SDPA, SGEMM = "softmax, ORT", "softmax, torch", "sgemm"
ALL = (SEPARATE, PACKED, EAGER, PAPER, DENSE, SOFTMAX, SDPA)
ORTHOGONAL = (PACKED, SEPARATE, EAGER, PAPER, DENSE)

MOST_SCORES = 2 << 30  # bytes of N × N scores; ways that hold them are left out beyond
WRONG = 1e-2  # an error beyond this is no answer

Session = onnxruntime.InferenceSession


@dataclass(frozen=True)
class Way:
    """One way to compute something: the call, and its result as (batch, heads, tokens, width)."""

    call: Call
    by_head: Callable[[Any], Tensor] = lambda result: result


@dataclass(frozen=True)
class Row:
    """What was measured at one point. ``ways`` has the fastest way of contenders that have several.

    ``errors`` are against float64, relative; a contender whose answer was wrong is in ``wrong`` and has no time.
    """

    point: Point
    contest: Contest
    errors: Mapping[str, float]
    ways: Mapping[str, str] = field(default_factory=dict)
    wrong: Mapping[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        measured = self.contest.as_dict()
        for name, figures in measured["contenders"].items():
            figures |= {"error": self.errors.get(name), "way": self.ways.get(name)}
        return {**self.point._asdict(), **measured, "wrong": dict(self.wrong)}


class Operators:
    """Everything for one width. The exported artifacts stay in ``folder``."""

    def __init__(self, width: int, threads: int, folder: Path) -> None:
        torch.set_num_threads(threads)
        self.width, self._threads = width, threads
        self.artifacts = {layout: export_operator(layout, width, folder) for layout in (PACKED, SEPARATE)}
        files = {name: (path / "model.onnx").read_bytes() for name, path in self.artifacts.items()}
        files |= {
            "MultiHeadAttention": peers.multi_head_attention(width).SerializeToString(),
            "Attention": peers.attention_operator(width).SerializeToString(),
            "MatMul–Softmax–MatMul": peers.three_products(width).SerializeToString(),
            SGEMM: peers.square_product().SerializeToString(),
        }
        self._sessions = {name: _open(content, threads) for name, content in files.items()}

    def measure(self, point: Point, names: tuple[str, ...], pace: Pace) -> Row:
        inputs = make_inputs(point)
        calls, chosen, errors, wrong = {}, {}, {}, {}
        exact = {True: inputs.exact_orthogonal()}
        with torch.inference_mode():
            for name in names:
                ways = self._ways(name, inputs)
                if not ways:
                    continue
                best = fastest({way: found.call for way, found in ways.items()}, self._threads)
                if len(ways) > 1:
                    chosen[name] = best
                way = ways[best]
                if name != SGEMM:
                    kind = name in ORTHOGONAL
                    if kind not in exact:
                        exact[kind] = inputs.exact_softmax()
                    errors[name] = relative_error(way.by_head(way.call()), exact[kind])
                    if not errors[name] <= WRONG:  # NaN, too
                        wrong[name] = errors.pop(name)
                        continue
                calls[name] = way.call
            return Row(point, compete(calls, pace, self._threads), errors, chosen, wrong)

    def _ways(self, name: str, inputs: Inputs) -> dict[str, Way]:
        q, k, v, scale = inputs.q, inputs.k, inputs.v, inputs.scale
        if name == PACKED:
            return {"": Way(self._run(PACKED, packed=inputs.packed), _split)}
        if name == SEPARATE:
            return {"": Way(self._run(SEPARATE, q=q, k=k, v=v), torch.from_numpy)}
        if name == EAGER:
            return {"": Way(partial(orthogonal_attention, q, k, v, scale))}
        if name == PAPER:
            return {"": Way(partial(peers.paper_by_basis, q, k, v, scale))}
        if name == DENSE:  # beyond 2d tokens S is larger than the core
            return {"": Way(partial(peers.dense_exponential, q, k, v, scale))} if q.size(-2) <= 2 * self.width else {}
        if name == SOFTMAX:
            return self._softmax_ways(inputs)
        if name == SDPA:
            return {"": Way(partial(nn.functional.scaled_dot_product_attention, q, k, v))}
        assert name == SGEMM
        a, b = torch.randn(2, peers.SGEMM_SIZE, peers.SGEMM_SIZE, generator=torch.Generator().manual_seed(0))
        return {"torch": Way(partial(torch.mm, a, b)), "ORT": Way(self._run(SGEMM, q=a, k=b))}

    def _softmax_ways(self, inputs: Inputs) -> dict[str, Way]:
        q, k, v = inputs.merged
        ways = {"MultiHeadAttention": Way(self._run("MultiHeadAttention", q=q, k=k, v=v), _split)}
        if 4 * math.prod(inputs.q.shape[:2]) * inputs.q.size(-2) ** 2 <= MOST_SCORES:
            for name in ("Attention", "MatMul–Softmax–MatMul"):
                ways[name] = Way(self._run(name, q=inputs.q, k=inputs.k, v=inputs.v), torch.from_numpy)
        return ways

    def _run(self, name: str, **feeds: Tensor) -> Call:
        session, arrays = self._sessions[name], {key: np.ascontiguousarray(x.numpy()) for key, x in feeds.items()}
        return lambda: session.run(None, arrays)[0]


def minimal_flops(point: Point) -> float:
    """The least that the method has to compute: FᵀP and F·Y over the tokens, and the core.

    F = [Q K] is N × 2d and P = [Q K V] is N × 3d. The core's least is a polynomial of degree 8 in three products of
    2d × 2d and its product with FᵀV, without any squaring. That FᵀF is symmetric is not counted.
    """
    n, d = point.tokens, point.width
    tokens = 2 * n * 2 * d * 3 * d + 2 * n * 2 * d * d
    core = 3 * 2 * (2 * d) ** 3 + 2 * (2 * d) ** 2 * d
    return float(point.batch * HEADS * (tokens + core))


def _split(merged: NDArray[np.float32]) -> Tensor:
    return torch.from_numpy(merged).unflatten(-1, (HEADS, -1)).transpose(1, 2)


def _open(model: bytes, threads: int) -> Session:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    return Session(model, options, providers=["CPUExecutionProvider"])
