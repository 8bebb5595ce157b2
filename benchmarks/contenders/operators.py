"""The operator's contenders: ours, exported; the paper's method; softmax; one large product. Their inputs have a given
‖S‖₂, and their answers are known in float64.

They are opened once for each width and can be called at any point.
"""

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime
import torch
from driver.contest import Contest, Row, Variant
from numpy.typing import NDArray
from onnx import parser
from torch import Tensor, nn

from osa_runtime import orthogonal_attention
from osa_runtime.benchmarking.result import Percentiles
from osa_runtime.benchmarking.timing import TimedCall
from osa_runtime.exporters import export
from osa_runtime.ops.reference import lowrank_orthogonal_attention, orthonormal_core, paper_attention

HEADS = 6
TRAINED_NORM = 2.0  # trained models have ‖S‖₂ of 1 to 3
SOFTMAX_ROWS = 1024  # at a time, so that a reference of long sequences fits into memory


class Point(NamedTuple):
    batch: int
    tokens: int
    width: int

    def __str__(self) -> str:
        return f"batch {self.batch}, {self.tokens} tokens, d = {self.width}"


@dataclass(frozen=True)
class Inputs:
    """q, k and v are (batch, heads, tokens, width); the largest ‖scale·(QKᵀ − KQᵀ)‖₂ is that of trained models."""

    q: Tensor
    k: Tensor
    v: Tensor

    @property
    def scale(self) -> float:
        return self.q.size(-1) ** -0.5

    @property
    def by_head(self) -> dict[str, Tensor]:
        return {"q": self.q, "k": self.k, "v": self.v}

    @cached_property
    def merged(self) -> dict[str, Tensor]:
        """Each (batch, tokens, heads·width), as ONNX Runtime's MultiHeadAttention takes them."""
        return {name: x.transpose(1, 2).flatten(2) for name, x in self.by_head.items()}

    def exact_orthogonal(self) -> Tensor:
        """exp(S)·V in float64, head by head, since long sequences need much memory."""
        heads = zip(*(x.flatten(0, 1) for x in (self.q, self.k, self.v)), strict=True)
        return torch.stack([lowrank_orthogonal_attention(*head, self.scale) for head in heads]).view(self.v.shape)

    def exact_softmax(self) -> Tensor:
        """softmax(QKᵀ·scale)·V in float64."""
        k, v = self.k.double().mT, self.v.double()
        parts = self.q.double().split(SOFTMAX_ROWS, -2)
        return torch.cat([torch.softmax(self.scale * part @ k, -1) @ v for part in parts], -2)


def make_inputs(point: Point) -> Inputs:
    generator = torch.Generator().manual_seed(point.tokens + point.width)
    shape = (point.batch, HEADS, point.tokens, point.width)
    q, k, v = (torch.randn(shape, generator=generator) for _ in range(3))
    factor = (TRAINED_NORM / spectral_norm(q, k, point.width**-0.5)) ** 0.5
    return Inputs(q * factor, k * factor, v)


def spectral_norm(q: Tensor, k: Tensor, scale: float) -> float:
    """The largest ‖scale·(QKᵀ − KQᵀ)‖₂ of all entries, from the cores of 2d × 2d."""
    return float(torch.linalg.matrix_norm(orthonormal_core(q.double(), k.double(), scale)[1], 2).max())


OURS, EAGER, PAPER, SOFTMAX, SGEMM = "ours", "ours, eager", "paper, eager", "softmax, ORT", "sgemm"
ALL = (OURS, EAGER, PAPER, SOFTMAX)
HOLD_SCORES = ("Attention", "MatMul–Softmax–MatMul")
MOST_SCORES = 2 << 30  # bytes of N × N scores; variants that hold them are left out beyond
SGEMM_SIZE = 1536
SGEMM_FLOPS = 2.0 * SGEMM_SIZE**3


class Operators:
    """Everything for one width, which can meet at any point. The exported artifacts stay in ``folder``."""

    def __init__(self, width: int, threads: int, folder: Path) -> None:
        self._threads = threads
        ours = export_operator(width, folder / "ours") / "model.onnx"
        models = {OURS: ours.read_bytes()} | peers(width)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        self._sessions = {
            name: onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
            for name, model in models.items()
        }

    def contest(self, point: Point, names: Sequence[str]) -> Contest:
        inputs = make_inputs(point)
        exact = cache(lambda softmax: inputs.exact_softmax() if softmax else inputs.exact_orthogonal())
        contenders = {name: self._variants(name, inputs) for name in names}
        return Contest(point, contenders, self._threads, lambda n: None if n == SGEMM else exact(n == SOFTMAX))

    def _variants(self, name: str, inputs: Inputs) -> dict[str, Variant]:
        if name in (EAGER, PAPER):
            function = orthogonal_attention if name == EAGER else paper_attention
            return {"": Variant(torch.inference_mode()(partial(function, inputs.q, inputs.k, inputs.v, inputs.scale)))}
        if name == OURS:
            return {"": Variant(self._run(OURS, inputs.by_head))}
        if name == SOFTMAX:
            scores = 4 * math.prod(inputs.q.shape[:2]) * inputs.q.size(-2) ** 2
            hold = HOLD_SCORES if scores <= MOST_SCORES else ()
            variants = {variant: Variant(self._run(variant, inputs.by_head)) for variant in hold}
            return {"MultiHeadAttention": Variant(self._run("MultiHeadAttention", inputs.merged), _split)} | variants
        assert name == SGEMM
        a, b = torch.randn(2, SGEMM_SIZE, SGEMM_SIZE, generator=torch.Generator().manual_seed(0))
        return {"torch": Variant(partial(torch.mm, a, b)), "ORT": Variant(self._run(SGEMM, {"q": a, "k": b}))}

    def _run(self, name: str, feeds: Mapping[str, Tensor]) -> TimedCall:
        session, arrays = self._sessions[name], {key: np.ascontiguousarray(x.numpy()) for key, x in feeds.items()}
        return lambda: session.run(None, arrays)[0]


def open_contests(plan: Mapping[Point, Sequence[str]], threads: int) -> Iterator[Contest]:
    """The contests of the named contenders at each point; what one width needs is exported once."""
    for width in dict.fromkeys(point.width for point in plan):
        with tempfile.TemporaryDirectory() as folder:
            operators = Operators(width, threads, Path(folder))
            for point, names in plan.items():
                if point.width == width:
                    yield operators.contest(point, names)


def minimal_flops(point: Point) -> float:
    """The least that the method has to compute: FᵀP and F·Y over the tokens, and the core.

    F = [Q K] is N × 2d and P = [Q K V] is N × 3d. The core's least is a polynomial of degree 8 in three products of
    2d × 2d and its product with FᵀV, without any squaring. That FᵀF is symmetric is not counted.
    """
    n, d = point.tokens, point.width
    tokens = 2 * n * 2 * d * 3 * d + 2 * n * 2 * d * d
    core = 3 * 2 * (2 * d) ** 3 + 2 * (2 * d) ** 2 * d
    return float(point.batch * HEADS * (tokens + core))


def share_of_sgemm(row: Row) -> Percentiles | None:
    """The rate over the minimal operations, relative to the rate of one large product in the same rounds."""
    found = row.ratio(OURS, SGEMM)
    factor = minimal_flops(row.place) / SGEMM_FLOPS
    return found and Percentiles(factor * found.median, factor * found.p10, factor * found.p90)


def _split(merged: NDArray[np.float32]) -> Tensor:
    return torch.from_numpy(merged).unflatten(-1, (HEADS, -1)).transpose(1, 2)


class Attention(nn.Module):
    """q, k and v as three arrays (batch, heads, tokens, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.scale = nn.Parameter(torch.full((HEADS,), width**-0.5))

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return orthogonal_attention(q, k, v, self.scale)


def export_operator(width: int, folder: Path) -> Path:
    """One graph for every batch and length."""
    axes = {0: torch.export.Dim("batch", min=1), 2: torch.export.Dim("tokens", min=1)}
    example = make_inputs(Point(2, 7, width)).by_head
    return export(Attention(width), tuple(example.values()), folder, dynamic_shapes=dict.fromkeys(example, axes)).folder


def peers(width: int) -> dict[str, bytes]:
    """The softmax attentions and the product of two large matrices as ONNX models."""
    by_head, merged = f"float[batch, {HEADS}, tokens, {width}]", f"float[batch, tokens, {HEADS * width}]"
    square = f"float[{SGEMM_SIZE}, {SGEMM_SIZE}]"
    products = f"""
        scale = Constant <value_float = {width**-0.5!r}> ()
        scaled = Mul (q, scale)
        columns = Transpose <perm = [0, 1, 3, 2]> (k)
        scores = MatMul (scaled, columns)
        weights = Softmax <axis = -1> (scores)
        y = MatMul (weights, v)"""  # q is smaller than the scores
    fused = f"y = com.microsoft.MultiHeadAttention <num_heads = {HEADS}> (q, k, v)"  # never holds the N × N scores
    return {
        "MultiHeadAttention": _model(fused, merged),
        "Attention": _model("y = Attention (q, k, v)", by_head, opset=23),
        "MatMul–Softmax–MatMul": _model(products, by_head),
        SGEMM: _model("y = MatMul (q, k)", square, inputs="qk"),
    }


def _model(body: str, type_: str, inputs: str = "qkv", opset: int = 18) -> bytes:
    opsets = f'<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]>'
    declared = ", ".join(f"{type_} {name}" for name in inputs)
    return parser.parse_model(f"{opsets} peer ({declared}) => ({type_} y) {{ {body} }}").SerializeToString()
