"""Exported attention is right or NaN whatever it is given, and NaN just where eager refuses."""

from __future__ import annotations

import io
import warnings

import numpy as np
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

from attention_models import attention_model
from exponents import normal, scale_for
from osa_runtime import orthogonal_attention
from osa_runtime.errors import ExponentRangeError
from osa_runtime.exporters import FunctionChoice
from structured_attention import Problem, is_right_or_nan, problems

pytestmark = pytest.mark.slow

CHOICES = {
    "auto": FunctionChoice(),
    "lowrank": FunctionChoice(form="lowrank"),
    "dense": FunctionChoice(form="dense"),
    "pade": FunctionChoice(approximant="pade"),
    "fixed": FunctionChoice(form="lowrank", squarings=6),
}


@pytest.fixture(scope="module")
def sessions() -> dict[str, onnxruntime.InferenceSession]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return {
        name: onnxruntime.InferenceSession(
            attention_model(choice).SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        for name, choice in CHOICES.items()
    }


def run(session: onnxruntime.InferenceSession, problem: Problem) -> Tensor:
    feeds = {name: getattr(problem, name)[None, None].numpy() for name in ("q", "k", "v")}
    return torch.from_numpy(session.run(None, feeds | {"scale": np.array([problem.scale], np.float32)})[0][0, 0])


def test_onnx_is_right_or_nan(sessions: dict[str, onnxruntime.InferenceSession]) -> None:
    @settings(max_examples=120)
    @given(problem=problems())
    def judge(problem: Problem) -> None:
        for name, session in sessions.items():
            assert is_right_or_nan(run(session, problem), problem), name

    judge()


@pytest.mark.parametrize("name", ["auto", "dense", "lowrank"])
@pytest.mark.parametrize("tokens", [8, 60])
def test_eager_and_onnx_accept_the_same_norms(
    name: str, tokens: int, sessions: dict[str, onnxruntime.InferenceSession]
) -> None:
    """The bound of ‖S‖ that both compute is a little larger than ‖S‖ itself; where it ends they end together."""
    q, k, v = (normal(tokens, 8, seed=seed) for seed in (1, 2, 3))
    accepted = []
    for norm in 2.0 ** np.arange(14, 20.25, 0.25):
        problem = Problem(q, k, v, float(scale_for(q, k, float(norm)).float()))
        try:
            orthogonal_attention(q, k, v, problem.scale, form=CHOICES[name].form)
            accepted.append(True)
        except ExponentRangeError:
            accepted.append(False)
        assert bool(run(sessions[name], problem).isfinite().all()) == accepted[-1]
    assert accepted[0]
    assert not accepted[-1]


@pytest.mark.parametrize("tokens", [8, 60])
def test_huge_values_are_an_answer(tokens: int, sessions: dict[str, onnxruntime.InferenceSession]) -> None:
    problem = Problem(*(normal(tokens, 8, seed=seed) for seed in (1, 2)), 1e36 * normal(tokens, 8, seed=3), 0.1)
    assert bool(run(sessions["auto"], problem).isfinite().all())
    assert is_right_or_nan(run(sessions["auto"], problem), problem)


class Attention(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: Tensor) -> Tensor:
        return orthogonal_attention(q, k, v, scale)


def test_pt2_is_right_or_nan() -> None:
    example = (*(normal(2, 40, 8, seed=seed) for seed in (1, 2, 3)), torch.full((2,), 0.1))
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens")}
    torch.compiler.reset()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(Attention(), example, dynamic_shapes=(axes, axes, axes, {0: axes[0]}))
        file = io.BytesIO()
        torch.export.save(program, file)
        file.seek(0)
        module = torch.export.load(file).module()

    @settings(max_examples=60)
    @given(problem=problems(widths=(8,)))
    def judge(problem: Problem) -> None:
        q, k = problem.q[None], problem.k[None]
        v = torch.cat([problem.v, problem.v, problem.v[:, :2]], -1)
        if q.size(1) < 2:
            return  # a size of 1 is outside of what the program was exported for
        out = module(q, k, v[None], torch.tensor([problem.scale]))[0]
        assert is_right_or_nan(out[:, :3], problem)

    judge()
