"""The low-rank core by Chebyshev steps: around each change of the number of steps, and where it gives up."""

from __future__ import annotations

from collections.abc import Iterable

import onnxruntime
import pytest
import torch
from onnx import NodeProto

from attention_models import attention_model
from exponents import normal, relative_error, scale_for
from osa_runtime.exporters import FunctionChoice, build_functions
from osa_runtime.ops import reference
from osa_runtime.ops.coefficients import CHEBYSHEV_REACH, FARTHEST, NEAR_REACH
from osa_runtime.ops.lowrank import core_norm, gram_core

pytestmark = pytest.mark.slow


def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, approximant: str = "taylor") -> torch.Tensor:
    model = attention_model(FunctionChoice(form="lowrank", approximant=approximant))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = {"q": q, "k": k, "v": v, "scale": torch.ones(q.size(1))}
    return torch.from_numpy(session.run(None, {name: x.numpy() for name, x in feeds.items()})[0])


def scaled(q: torch.Tensor, k: torch.Tensor, bound: torch.Tensor | float) -> torch.Tensor:
    """q such that the graph's own bound of ‖S‖₂ is this for each entry."""
    q64, k64 = q.double(), k.double()
    m, _, _ = gram_core(q64, k64, q64, torch.ones(1, dtype=torch.float64))
    return (q.double() * (torch.as_tensor(bound) / core_norm(m @ m))[..., None, None]).float()


@pytest.mark.parametrize("steps", [0.01, 0.5, 0.99, 1.01, 1.99, 2.01, 2.99, 3.01, 3.99, 4.01, 6.0])
@pytest.mark.parametrize("d", [4, 16, 32])
def test_every_number_of_steps(steps: float, d: int) -> None:
    q, k, v = (normal(2, 3, 150, width, seed=seed) for seed, width in ((1, d), (2, d), (3, 7)))
    q = scaled(q, k, steps * CHEBYSHEV_REACH)
    exact = reference.orthogonal_attention(q, k, v, torch.ones(3))
    assert float(relative_error(run(q, k, v), exact).max()) < 1e-6 * max(1.0, steps)


@pytest.mark.parametrize("share", [0.98, 1.02])
@pytest.mark.parametrize("d", [1, 16, 32])
def test_both_sides_of_the_short_reach(share: float, d: int) -> None:
    """With all values of S at the bound, where powers of M² cancel most: Q and K with orthogonal columns."""
    basis = torch.linalg.qr(normal(1, 4, 150, 2 * d, seed=4).double())[0]
    length = (share * NEAR_REACH) ** 0.5
    q, k = ((length * half).float() for half in basis.split(d, -1))
    v = normal(1, 4, 150, 7, seed=5)
    exact = reference.orthogonal_attention(q, k, v, torch.ones(4))
    assert float(relative_error(run(q, k, v), exact).max()) < 1e-6


def test_it_is_no_less_accurate_than_squaring() -> None:
    """Over many draws, the mean error is not above that of the same core with scaling and squaring."""
    errors: dict[str, list[float]] = {"taylor": [], "pade": []}
    for seed in range(6):
        q, k, v = (normal(1, 4, 200, 32, seed=10 * seed + i) for i in range(3))
        q = (q * scale_for(q, k, 2.0)[..., None, None]).float()
        exact = reference.orthogonal_attention(q, k, v, torch.ones(4))
        for approximant, found in errors.items():
            found.append(float(relative_error(run(q, k, v, approximant=approximant), exact).mean()))
    assert sum(errors["taylor"]) <= 1.05 * sum(errors["pade"])


def test_an_entry_does_not_depend_on_the_steps_that_another_takes() -> None:
    q, k, v = (normal(3, 2, 100, 16, seed=seed) for seed in (1, 2, 3))
    q = scaled(q, k, torch.tensor([[0.01], [1.0], [0.9 * FARTHEST]]).expand(3, 2))
    together = run(q, k, v)
    for entry in range(2):
        alone = run(q[entry : entry + 1], k[entry : entry + 1], v[entry : entry + 1])
        torch.testing.assert_close(together[entry : entry + 1], alone, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("tokens", [1, 2, 5, 33])
@pytest.mark.parametrize("d", [1, 2, 16])
def test_any_rank(tokens: int, d: int) -> None:
    """Fewer tokens than 2d, one token (S = 0), one pair of eigenvalues."""
    q, k, v = (normal(1, 2, tokens, d, seed=seed) for seed in (1, 2, 3))
    exact = reference.orthogonal_attention(q, k, v, torch.ones(2))
    assert float(relative_error(run(q, k, v), exact).max()) < 3e-6


@pytest.mark.parametrize("kind", ["zero", "equal", "one zero"])
def test_degenerate_cores(kind: str) -> None:
    q, k, v = (normal(1, 2, 60, 8, seed=seed) for seed in (1, 2, 3))
    if kind == "zero":
        q, k = torch.zeros_like(q), torch.zeros_like(k)
    elif kind == "equal":
        k = q.clone()
    else:
        q = torch.zeros_like(q)
    torch.testing.assert_close(run(q, k, v), v, rtol=0, atol=1e-5)


@pytest.mark.parametrize("exponent", range(2, 20))
def test_norms_beyond_every_bound_give_nan(exponent: int) -> None:
    """NaN also if the bound itself overflows on the way; the entry next to it is answered."""
    q, k, v = (normal(1, 2, 60, 8, seed=seed) for seed in (1, 2, 3))
    size = torch.tensor([10.0**exponent, 0.01])[None, :, None, None]
    found = run(q * size, k * size, v * 1e-6)
    if exponent > 6:
        assert bool(found[:, 0].isnan().all())
    exact = reference.orthogonal_attention((q * size)[:, 1:], (k * size)[:, 1:], (v * 1e-6)[:, 1:], torch.ones(1))
    assert float(relative_error(found[:, 1:], exact).max()) < 1e-6


def test_the_definition_has_no_squaring_where_it_takes_steps() -> None:
    functions = {f.name: f for f in build_functions(FunctionChoice(form="lowrank"))}
    called = _called(functions["LowRankChange"].node)
    assert {"NearSolution", "SteppedSolution", "PreciseChange"} <= called
    assert "GramSolution" not in called


def _called(nodes: Iterable[NodeProto]) -> set[str]:
    """The operators of these nodes and of the branches in them."""
    found: set[str] = set()
    for node in nodes:
        found |= {node.op_type}.union(*(_called(attribute.g.node) for attribute in node.attribute))
    return found
