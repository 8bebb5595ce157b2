"""Programs of torch.export with ``core="float32"``: without float64 and branches, and right or NaN."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

import osa_runtime
from exponents import normal, scale_for
from osa_runtime import orthogonal_attention
from osa_runtime.errors import ExponentRangeError, InputError
from osa_runtime.exponential import ExponentialMethod
from osa_runtime.exporters.compiled import for_litert, narrowed
from osa_runtime.inspection.inspecting import inspect_artifact
from osa_runtime.ops.coefficients import LARGEST_TERMS_ALONE
from osa_runtime.ops.float32_alone import float32_attention
from osa_runtime.parity.tolerances import FLOAT32_ALONE_SHARE
from structured_attention import Problem, is_right_or_nan, problems

METHODS = {
    (form, approximant): ExponentialMethod(form, approximant, 4)
    for form in ("dense", "lowrank")
    for approximant in ("taylor", "pade")
}


def run(problem: Problem, how: ExponentialMethod) -> Tensor:
    """The answer, with NaN where the squarings do not suffice: eager raises there, a captured program does not."""
    try:
        return float32_attention(problem.q[None], problem.k[None], problem.v[None], problem.scale, None, how)[0]
    except ExponentRangeError:
        return torch.full_like(problem.v, torch.nan)


def test_right_or_nan() -> None:
    @settings(max_examples=200)
    @given(problem=problems())
    def judge(problem: Problem) -> None:
        for name, how in METHODS.items():
            assert is_right_or_nan(run(problem, how), problem, FLOAT32_ALONE_SHARE), name

    judge()


@pytest.mark.parametrize("name", METHODS, ids=str)
@pytest.mark.parametrize(("tokens", "width", "norm"), [(17, 16, 8.0), (100, 16, 8.0), (120, 64, 3.0), (3, 2, 0.01)])
def test_ordinary_attention_is_answered(name: tuple[str, str], tokens: int, width: int, norm: float) -> None:
    q, k, v = (normal(tokens, width, seed=seed) for seed in (1, 2, 3))
    problem = Problem(q, k, v, float(scale_for(q, k, norm).float()))
    found = run(problem, METHODS[name])
    assert bool(found.isfinite().all())
    assert is_right_or_nan(found, problem)


class Own(nn.Module):
    def __init__(self, squarings: str | int = 4) -> None:
        super().__init__()
        self.squarings = squarings

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return orthogonal_attention(q, k, v, 1.0, mask[:, None], squarings=self.squarings)


def example(tokens: int, terms: float) -> tuple[Tensor, ...]:
    """|c|·‖Q‖·‖K‖ is ``terms`` in the second entry, and a hundredth of it in the first."""
    q, k, v = (normal(2, 1, tokens, 4, seed=seed) for seed in (1, 2, 3))
    q, k = (x / torch.linalg.matrix_norm(x, keepdim=True) * terms**0.5 for x in (q, k))
    q[0] /= 100
    return q, k, v, torch.arange(tokens) < torch.tensor([[tokens], [tokens - 1]])


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [7, 21])  # dense and low-rank
def test_an_exported_program(tokens: int, tmp_path: Path) -> None:
    artifact = osa_runtime.export(
        Own(), example(tokens, 8.0), tmp_path / "a", format="pt2", squarings=4, core="float32"
    )
    assert artifact.manifest.osa is not None
    assert artifact.manifest.osa.core == "float32"
    program = torch.export.load(artifact.model_path)
    kinds = {x.dtype for node in program.graph.nodes if isinstance(x := node.meta.get("val"), Tensor)}
    assert torch.float64 not in kinds
    assert torch.float32 in kinds
    assert not any("float64" in str(node.args) or "higher_order" in str(node.target) for node in program.graph.nodes)
    call = program.module()
    inputs = example(tokens, 16.0)
    torch.testing.assert_close(call(*inputs), Own("auto")(*inputs), rtol=1e-5, atol=1e-5)
    beyond = call(*example(tokens, 10 * LARGEST_TERMS_ALONE))
    assert bool(beyond[0].isfinite().all())
    assert bool(beyond[1, :, : tokens - 1].isnan().all())
    (litert, openvino) = inspect_artifact(artifact.folder, ["cpu"], ["litert", "openvino"]).targets
    assert litert.objections == ()
    assert openvino.objections


@pytest.mark.slow
def test_float64_is_an_objection_for_litert(tmp_path: Path) -> None:
    artifact = osa_runtime.export(Own(), example(7, 8.0), tmp_path / "a", format="pt2", squarings=4)
    (litert,) = inspect_artifact(artifact.folder, ["cpu"], ["litert"]).targets
    assert "computes in float64" in litert.objections[0]


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is for graphs without branches"):
        osa_runtime.export(Own(), example(7, 8.0), tmp_path / "a", format="pt2", core="float32")
    with pytest.raises(InputError, match="not for torchscript"):
        osa_runtime.export(Own(), example(7, 8.0), tmp_path / "a", format="torchscript", squarings=4, core="float32")


class Activations(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = torch.add(nn.functional.leaky_relu(x, 0.3), torch.relu(x), alpha=0.5)
        return torch.where(y.isfinite(), torch.exp2(y), y)


@pytest.mark.filterwarnings("ignore:.isinstance:FutureWarning")  # torch's own, while it decomposes
def test_programs_for_litert_keep_nan_without_its_kernels_that_hide_it() -> None:
    x = torch.tensor([-3.0, -0.0, 0.0, 2.0, torch.nan, torch.inf, -torch.inf])
    program = for_litert(torch.export.export(Activations(), (x,)))
    torch.testing.assert_close(program.module()(x), Activations()(x), equal_nan=True)
    left = {str(node.target) for node in program.graph.nodes}
    assert not left & {"aten.leaky_relu.default", "aten.relu.default", "aten.exp2.default"}


def test_ids_for_litert_are_int32_or_an_error() -> None:
    ids = torch.tensor([[0, 5, 2**31 - 1]])
    assert narrowed(ids).dtype == torch.int32
    assert narrowed(ids).tolist() == ids.tolist()
    mask = torch.tensor([True])
    assert narrowed(mask) is mask
    with pytest.raises(InputError, match=r"received ids from 5 to 4294967301"):
        narrowed(torch.tensor([5, 2**32 + 5]))
