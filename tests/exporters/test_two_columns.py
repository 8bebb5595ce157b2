"""The operators and the exported functions are one algorithm: function by function, on random cores.

``osa_runtime/ops/README.md`` has the table of formulas and of their two implementations.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from torch import Tensor

import osa_runtime.ops
from attention_models import functions_of
from exponents import normal, relative_error
from osa_runtime.exporters import FunctionChoice, build_functions
from osa_runtime.nn import OrthogonalSelfAttention
from osa_runtime.ops import approximants, chebyshev, dense, folded, lowrank, rounding, scaling
from osa_runtime.ops.coefficients import CHEBYSHEV_REACH, FARTHEST, FLOAT64_AMPLIFICATION, LARGEST_TERMS

D, E, N = 8, 5, 40
POLYNOMIAL, PADE = FunctionChoice(form="auto"), FunctionChoice(approximant="pade")
TYPES = {torch.float32: TensorProto.FLOAT, torch.float64: TensorProto.DOUBLE, torch.int64: TensorProto.INT64}
TYPES[torch.bool] = TensorProto.BOOL


def exported(name: str, *inputs: Tensor, outputs: int = 1, choice: FunctionChoice = POLYNOMIAL) -> list[Tensor]:
    """The outputs of one ai.osa function in ONNX Runtime."""
    feeds = {f"x{i}": x.numpy() for i, x in enumerate(inputs)}
    given = [helper.make_tensor_value_info(f"x{i}", TYPES[x.dtype], [None] * x.dim()) for i, x in enumerate(inputs)]
    made = [onnx.ValueInfoProto(name=f"y{i}") for i in range(outputs)]
    node = helper.make_node(name, list(feeds), [value.name for value in made], domain="ai.osa")
    model = helper.make_model(
        helper.make_graph([node], "one", given, made),
        functions=functions_of(choice),
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("ai.osa", 1)],
        ir_version=10,
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return [torch.from_numpy(x) for x in session.run(None, feeds)]


def core(norm: float, ratio: float = 1.0, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """q, k, v and c of two entries of one head, with this bound of ‖S‖, and Q ``ratio`` times as long as K."""
    q, k, v = (normal(2, N, width, seed=seed).to(dtype) for seed, width in ((1, D), (2, D), (3, E)))
    one = torch.ones(2, 1, 1, dtype=dtype)
    m, _, _ = lowrank.gram_core(q, k, v, one)
    c = norm / lowrank.core_norm(m @ m)[:, None, None]
    return q * ratio, k / ratio, v, c.to(dtype)


def solved(norm: float) -> tuple[Tensor, ...]:
    """m, m2, norm, w, t and c."""
    q, k, v, c = core(norm)
    m, w, t = lowrank.gram_core(q, k, v, c)
    m2 = m @ m
    return m, m2, lowrank.core_norm(m2), w, t, c


def heads(*tensors: Tensor) -> list[Tensor]:
    """(b, …) as (b, 1, …), and (b) as (b, 1, 1, 1): the functions have an axis for heads and keep that of matrices."""
    return [x[:, None] if x.dim() == 3 else x[:, None, None, None] for x in tensors]


def agree(ours: Tensor, theirs: Tensor, ulps: float = 8) -> None:
    matrix = ours[:, None] if ours.dim() == 3 else ours[:, None, None, None]
    assert matrix.shape == theirs.shape
    assert float(relative_error(theirs, matrix).max()) <= ulps * torch.finfo(ours.dtype).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("ratio", [1.0, 100.0, 1e-6])
def test_gram_core_and_its_norm(ratio: float, dtype: torch.dtype) -> None:
    q, k, v, c = core(2.0, ratio, dtype)
    m, w, t = lowrank.gram_core(q, k, v, c)
    for ours, theirs in zip((m, w, t), exported("GramCore", *heads(q.mT, k.mT, q, k, v, c), outputs=3), strict=True):
        agree(ours, theirs)
    agree(lowrank.core_norm(m @ m), exported("CoreNorm", *heads(m @ m))[0])


def test_the_shear() -> None:
    q, k, _, _ = core(2.0)
    agree(lowrank.sheared(q, k + 3 * q), exported("Sheared", *heads(q, k + 3 * q))[0])


def test_the_estimate_of_a_norm_and_the_amplification() -> None:
    m, _, norm, *_ = solved(3.0)
    agree(rounding.spectral_estimate(m), exported("SpectralEstimate", *heads(m))[0])
    agree(rounding.gram_amplification(m, norm), exported("GramAmplification", *heads(m, norm))[0], 32)


@pytest.mark.parametrize("size", [1.0, 6.0, float("nan")])
def test_what_is_in_doubt(size: float) -> None:
    m, _, norm, w, *_ = solved(2.0)
    m, norm = m * size, norm * size
    (theirs,) = exported("IsInDoubt", *heads(m, w, norm))
    assert torch.equal(rounding.is_in_doubt(m, w, norm).float(), theirs[:, 0, 0, 0])
    assert bool(theirs.all()) is (size != 1.0)


@pytest.mark.parametrize("share", [0.9, 1.1])
def test_what_is_lost(share: float) -> None:
    m, _, norm, *_ = (x.double() for x in solved(2.0))
    m *= (share * FLOAT64_AMPLIFICATION / rounding.gram_amplification(m, norm))[:, None, None] ** (1 / 3)
    (theirs,) = exported("IsLostInGram", *heads(m, norm))
    assert rounding.is_lost_in_gram(m, norm, False).tolist() == theirs[:, 0, 0, 0].tolist() == [share > 1] * 2
    q, k, _, c = (x.double() for x in core(2.0))
    c = share * LARGEST_TERMS / (torch.linalg.matrix_norm(q) * torch.linalg.matrix_norm(k))[:, None, None]
    (theirs,) = exported("IsLostInTerms", *heads(q, k, c))
    assert rounding.is_lost_in_terms(q, k, c, norm, False).tolist() == theirs[:, 0, 0, 0].tolist() == [share > 1] * 2


def test_the_short_polynomial() -> None:
    m, m2, _, w, t, c = solved(2.5)
    agree(chebyshev.near_phi1(m2, w, m @ w), exported("NearPhi1", *heads(m2, w, m @ w))[0])
    for ours, theirs in zip(
        chebyshev.near_solution(m, m2, w, t, c),
        exported("NearSolution", *heads(m, m2, w, t, c), outputs=2),
        strict=True,
    ):
        agree(ours, theirs)


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_the_steps(steps: int) -> None:
    m, m2, norm, w, t, c = solved((steps - 0.1) * CHEBYSHEV_REACH)
    assert int(chebyshev.steps_needed(norm)) == steps
    ours = chebyshev.stepped_solution(m, m2, norm, w, t, c)
    theirs = exported("SteppedSolution", *heads(m, m2, norm, w, t, c), outputs=2)
    for mine, other in zip(ours, theirs, strict=True):
        agree(mine, other, 40 * steps)
    u = m2 / FARTHEST**2
    agree(chebyshev.chebyshev_phi1(u, w, m @ w / 50), exported("ChebyshevPhi1", *heads(u, w, m @ w / 50))[0])


@pytest.mark.parametrize("choice", [POLYNOMIAL, PADE], ids=["taylor", "pade"])
@pytest.mark.parametrize("norm", [0.5, 10.0])
def test_scaling_and_squaring_of_the_core(norm: float, choice: FunctionChoice) -> None:
    """In float64, where both take it; in float32 it would round too much to be compared."""
    parts = [x.double() for x in solved(norm)]
    m, m2, bound, w, t, c = parts
    for_q, for_k = lowrank.gram_solution(m, m2, bound, w, t, c, choice.approximant, -1, False)
    their_q, their_k, squarings = exported("GramSolution", *heads(*parts), outputs=3, choice=choice)
    theta = scaling.reach(choice.approximant, "lowrank", False)
    assert int(scaling.scaling(bound, theta, -1, False, 1)[1]) == squarings
    # M is not normal: rounding grows with the cube of the norm.
    agree(for_q, their_q, 500 * max(1.0, norm) ** 3)
    agree(for_k, their_k, 500 * max(1.0, norm) ** 3)


@pytest.mark.parametrize("choice", [POLYNOMIAL, PADE], ids=["taylor", "pade"])
def test_the_dense_form(choice: FunctionChoice) -> None:
    q, k, v, c = core(3.0)
    s = dense.skew_matrix(q[:, :12], k[:, :12], c)
    s2 = s @ s
    agree(dense.skew_norm(s2), (exported("SkewFourths", *heads(s2))[0] / 2) ** 0.25)
    factor = torch.full((2, 1, 1), 0.25)
    ours = approximants.scaled_expm1(s, s2, factor, choice.approximant, False)
    agree(ours, exported("ScaledExpm1", *heads(s, s2, factor), choice=choice)[0], 32)
    expm1, _ = exported("SkewExpm1", *heads(s), outputs=2, choice=choice)
    agree(dense.skew_expm1(s, choice.approximant, -1, False), expm1, 64)
    change, _ = exported("DenseChange", *heads(q[:, :12], k[:, :12], v[:, :12], c), outputs=2, choice=choice)
    agree(dense.dense_change(q[:, :12], k[:, :12], v[:, :12], c, choice.approximant, -1, False), change, 64)


@pytest.mark.parametrize("norm", [0.1, 2.5, 4.0, 8.0, 100.0])
def test_the_whole_change(norm: float) -> None:
    q, k, v, c = core(norm)
    change, _ = exported("LowRankChange", *heads(q, k, v, c), outputs=2)
    agree(lowrank.lowrank_change(q, k, v, c, "taylor", -1, False, True), change, 40 * max(1.0, norm))


MODULES = ("approximants", "attention", "chebyshev", "dense", "folded", "lowrank", "rounding", "scaling")
# Names of ONNX alone: variants of a definition, and steps that eager writes in place.
ALONE = {"Change", "MeanOfDiagonal", "SkewFourths", "TwiceIdentity", "Float32Attention", "Float64Change", "IsDouble"}
ALONE |= {"OrthogonalSelfAttention", "Float32SelfAttention", "OnGrid", "MeanScaling", "Turned"}
ALONE |= {"Merged", "FoldedSolution", "QueriesKeysValues", "WithPadding"}
ALONE |= {"ShiftedSelfAttention", "OrthogonalSelfAttentionLinear", "Float32Change", "Length"}


def test_names_and_files_are_the_same() -> None:
    folder = Path(osa_runtime.ops.__file__).parent
    names = {name.replace("_", "").lower() for module in MODULES for name in _functions(module)}
    found = {
        f.name
        for choice in (
            POLYNOMIAL,
            PADE,
            FunctionChoice(masked=True, layered=True),
            replace(LAYERED, joined=True),
            FLOAT32,
        )
        for f in build_functions(choice)
    }
    assert all((folder / f"{module}.py").exists() for module in MODULES)
    assert {name for name in found - ALONE if name.lower() not in names} == set()
    readme = (folder / "README.md").read_text()
    assert [name for name in sorted(found) if f"`{name}`" not in readme] == []
    rows = [line.split(" | ") for line in readme.splitlines() if line.startswith("| ") and line.count(" | ") == 2]
    assert [name for row in rows for name in re.findall(r"`(\w+)`", row[2]) if name not in found] == []
    eager = {name for path in folder.glob("*.py") for name in _functions(path.stem)}
    named = [name.rpartition(".")[2] for row in rows for name in re.findall(r"`([\w.]+)`", row[1])]
    assert [name for name in named if name not in eager | {"forward"}] == []


def _functions(module: str) -> Sequence[str]:
    found = vars(importlib.import_module(f"osa_runtime.ops.{module}"))
    return [name for name, value in found.items() if isinstance(value, Callable)]  # type: ignore[arg-type]


LAYERED = FunctionChoice(form="auto", any_type=False, layered=True)
FLOAT32 = FunctionChoice(form="lowrank", squarings=2, core="float32")


@pytest.mark.parametrize("offset", [0.0, 30.0])
def test_the_folded_layer(offset: float) -> None:
    x = normal(2, N, 12) + offset * normal(12, seed=1)
    weight, out, scale = normal(36, 12, seed=2), normal(12, 12, seed=3), torch.tensor([1e-4, 3e-4])
    weight[:6] *= 9.0  # so that the balance has something to do
    packed = folded.packed_by_head(weight, 2)
    assert torch.equal(exported("PackedByHead", weight.mT.contiguous(), scale, choice=LAYERED)[0], packed)
    ours = folded.centred(x, None)
    theirs = exported("Centred", x, outputs=4, choice=LAYERED)
    for mine, found in zip(ours[:2], theirs, strict=False):
        torch.testing.assert_close(found, mine, rtol=1e-6, atol=1e-6)
    x0, mean, rest, count = ours
    gram = x0.mT @ x0
    m, w, f, (z, stretch), beta = folded.folded_core(gram, mean, rest, count, packed, scale)
    found = exported("FoldedCore", gram, mean, rest, count, packed, scale, outputs=6, choice=LAYERED)
    mine = (m, w, f, z, z * stretch, beta[:, None, None])
    for ours_one, theirs_one in zip(mine, found, strict=True):
        one = theirs_one.expand(2, 2, -1, -1).flatten(0, 1)
        torch.testing.assert_close(one, ours_one, rtol=0, atol=2e-6 * float(ours_one.abs().max()))
    norm = lowrank.core_norm(m @ m)
    for limit in (1e-3, 1e3):  # of the amplification, by way of M
        large = m * limit
        doubt = folded.is_in_folded_doubt(large, w, norm, beta)
        (found_doubt,) = exported(
            "IsInFoldedDoubt",
            *(one.unflatten(0, (2, 2)) for one in (large, w, norm[:, None, None], beta[:, None, None])),
            choice=LAYERED,
        )
        assert torch.equal(found_doubt.flatten() > 0.5, doubt)
    y = normal(4, 12, 6, seed=4)
    rows = (*(one.unflatten(0, (2, 2)) for one in (y, f, z, z * stretch)), mean, packed, out.mT)
    for a, b in zip(
        folded.folded_map(y, f, (z, stretch), mean, packed, out),
        exported("FoldedMap", *rows, outputs=2, choice=LAYERED),
        strict=True,
    ):
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-5 * float(a.abs().max()))


@pytest.mark.parametrize("tokens", [1, 40, 100, 300, 1000])
def test_folding_pays(tokens: int) -> None:
    weight, out, scale = torch.zeros(32, 96), torch.zeros(32, 32), torch.zeros(4)
    (found,) = exported("FoldingPays", torch.zeros(1, tokens, 32), weight, out, scale, choice=LAYERED)
    assert bool(found) is folded.folding_pays(tokens, 32, 8)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", ["few", "near", "steps", "mean", "doubt", "nan"])
def test_the_layer_is_eager(kind: str, masked: bool) -> None:
    torch.manual_seed(0)
    tokens = 12 if kind == "few" else 160
    layer = OrthogonalSelfAttention(16, 2, alpha={"steps": 0.05, "doubt": 0.02}.get(kind, 0.005))
    x = normal(3, tokens, 16) + (10.0 if kind == "mean" else 0.0) * normal(16, seed=1)
    if kind == "doubt":
        x[1, 3] *= 100.0
    if kind == "nan":
        x[1, 3, 2] = float("nan")
    mask = torch.arange(tokens) < torch.tensor([[tokens], [tokens - 5], [1]]) if masked else None
    inputs = (x, layer.project.weight.detach().mT, layer.out.weight.detach().mT, layer.alpha.detach() / 8**0.5)
    choice = replace(LAYERED, masked=masked, counted=True)
    if kind in ("steps", "nan"):  # sizes that are known
        choice = replace(choice, form="lowrank", sized=False)
    given = inputs if mask is None else (*inputs, mask)
    found, squarings = exported("OrthogonalSelfAttention", *given, outputs=2, choice=choice)
    expected = layer(x, mask).detach()
    assert int(squarings) >= 0
    assert torch.equal(found.isnan().flatten(1).any(1), expected.isnan().flatten(1).any(1))
    torch.testing.assert_close(
        found, expected, rtol=0, atol=2e-6 * float(expected.nan_to_num().abs().max()), equal_nan=True
    )


@pytest.mark.parametrize("tokens", [12, 160])
def test_the_layer_with_a_linear_one_behind_it(tokens: int) -> None:
    torch.manual_seed(0)
    layer, linear = OrthogonalSelfAttention(16, 2, alpha=0.005), torch.nn.Linear(16, 40)
    x = normal(3, tokens, 16) + normal(16, seed=1)
    weights = (layer.project.weight.detach().mT, layer.out.weight.detach().mT, layer.alpha.detach() / 8**0.5)
    inputs = (x, *weights, linear.weight.detach().mT, linear.bias.detach())
    choice = replace(LAYERED, counted=True, joined=True)
    found, _ = exported("OrthogonalSelfAttentionLinear", *inputs, outputs=2, choice=choice)
    expected = linear(layer(x)).detach()
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6 * float(expected.abs().max()))
