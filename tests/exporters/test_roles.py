"""The batch and the mask of a module of one's own: found by trying, not by name."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from osa_runtime import OrthogonalSelfAttention, load
from osa_runtime.exporters import export
from osa_runtime.exporters.roles import find_roles
from osa_runtime.interface import Interface, Roles, TensorSpec
from osa_runtime.serving.engine.batch_plan import BatchPlan
from osa_runtime.verification import VerifySettings, verify

pytestmark = pytest.mark.slow


class Rows(nn.Module):
    """Independent rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x))


class Tokens(nn.Module):
    """The leading axis holds tokens, which attend to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = OrthogonalSelfAttention(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x[None])[0]


class Masked(nn.Module):
    """``hides`` is the value of the mask that hides a token."""

    def __init__(self, hides: bool) -> None:
        super().__init__()
        self.hides = hides
        self.attention = OrthogonalSelfAttention(4, 2)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        real = ~padding if self.hides else padding
        return self.attention(x, real).masked_fill(~real[..., None], 0.0)


class Switched(nn.Module):
    """A boolean with rows and tokens that hides nothing."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return torch.where(mask[..., None], x, -x).cumsum(1)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 4)
        self.attention = OrthogonalSelfAttention(4, 2)

    def forward(self, ids: Tensor, real: Tensor) -> Tensor:
        return self.attention(self.table(ids), real).masked_fill(~real[..., None], 0.0).mean(1)


class Refusing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("only on Tuesdays")


def x_of(*shape: int | str) -> TensorSpec:
    return TensorSpec("x", "float32", shape)


def bool_of(name: str) -> TensorSpec:
    return TensorSpec(name, "bool", ("n", "length"))


SEQUENCE = (x_of("n", "length", 4),)
OUT = (TensorSpec("y", "float32", ("n", "length", 4)),)


@pytest.mark.parametrize(
    ("module", "interface", "expected"),
    [
        (Rows(), Interface((x_of("n", 4),), (x_of("n", 4),)), Roles("n")),
        (Rows(), Interface((x_of("tokens", 4),), (x_of("tokens", 4),)), Roles("tokens")),
        (Tokens(), Interface((x_of("n", 4),), (x_of("n", 4),)), Roles()),
        (Tokens(), Interface((x_of("batch", 4),), (x_of("batch", 4),)), Roles()),
        (Masked(hides=False), Interface((*SEQUENCE, bool_of("padding")), OUT), Roles("n", "padding")),
        (Masked(hides=True), Interface((*SEQUENCE, bool_of("padding")), OUT), Roles("n")),
        (Masked(hides=True), Interface((*SEQUENCE, bool_of("mask")), OUT), Roles("n")),
        (Switched(), Interface((*SEQUENCE, bool_of("mask")), OUT), Roles("n")),
        (
            Words(),
            Interface(
                (TensorSpec("ids", "int64", ("n", "length")), bool_of("real")),
                (TensorSpec("y", "float32", ("n", 4)),),
                values={"ids": {"min": 0, "max": 8}},
            ),
            Roles("n", "real"),
        ),
        (Rows(), Interface((x_of("n", 4),), (x_of("n", 4),), {"n": {"min": 3}}), Roles()),  # cannot be tried
        (Rows(), Interface((x_of("batch", 4),), (x_of("batch", 4),), {"batch": {"min": 3}}), Roles("batch")),
        (Refusing(), Interface((x_of("n", 4),), (x_of("n", 4),)), Roles()),
        (Refusing(), Interface((x_of("batch_size", 4),), (x_of("batch_size", 4),)), Roles("batch_size")),
        (Rows(), Interface((x_of(2, 4),), (x_of(2, 4),)), Roles()),
    ],
)
def test_roles_are_what_the_module_does(module: nn.Module, interface: Interface, expected: Roles) -> None:
    torch.manual_seed(0)
    assert find_roles(module, interface) == expected


@pytest.mark.parametrize("axis", ["n", "batch"])
def test_tokens_on_the_leading_axis_share_no_batch(tmp_path: Path, axis: str) -> None:
    """Joined requests would attend to each other: an answer that looks right and is wrong."""
    module = Tokens()
    artifact = export(module, torch.randn(5, 4), tmp_path / "out", dynamic_shapes={"x": {0: axis}})
    assert artifact.manifest.roles == Roles()
    assert not BatchPlan(artifact.manifest.interface).can_batch
    result = verify(artifact.folder, module=module, settings=VerifySettings(quick=True))
    assert result.certificate.verdict == "pass", result.certificate.checks


def test_a_mask_of_any_name_is_padded_and_filled_in(tmp_path: Path) -> None:
    axes: Any = {0: "n", 1: "length"}
    args = (torch.randn(3, 5, 4), torch.ones(3, 5, dtype=torch.bool))
    module = Masked(hides=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        artifact = export(module, args, tmp_path / "out", dynamic_shapes={"x": axes, "padding": axes})
    plan = BatchPlan(artifact.manifest.interface)
    requests = [np.random.default_rng(n).standard_normal((1, n, 4)).astype(np.float32) for n in (3, 7)]
    feeds = [plan.with_mask({"x": x}) for x in requests]
    extents = [plan.extent(part) for part in feeds]
    with load(artifact.folder) as session:
        together = plan.split(session.run(plan.join(feeds, extents)), extents)
        for part, answer in zip(feeds, together, strict=True):
            np.testing.assert_allclose(answer["output"], session.run(part)["output"], atol=1e-6)
