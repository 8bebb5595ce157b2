"""An export is judged as verification judges: float64 decides, amplified rounding is measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from osa_runtime import OrthogonalSelfAttention
from osa_runtime.errors import ExportError
from osa_runtime.exporters import export
from osa_runtime.exporters.acceptance import norms_by_layer
from osa_runtime.exporters.eager import Eager
from osa_runtime.models import EncoderConfig, SkiplessEncoder
from osa_runtime.verification.answers import reference_answers

pytestmark = pytest.mark.slow

AXES = {"x": {0: "batch", 1: "tokens"}}


class Residual(nn.Module):
    """Layers next to skips; ``scale`` says how large ‖S‖ is in each."""

    def __init__(self, depth: int, scale: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(OrthogonalSelfAttention(32, 2) for _ in range(depth))
        for layer in self.layers:
            layer.alpha.data.fill_(scale)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


class Single(nn.Module):
    """Its own code says float32, so that it does not run in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = OrthogonalSelfAttention(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x @ torch.eye(32, dtype=torch.float32))


@pytest.mark.parametrize(
    ("scale", "seed"),
    [
        (0.2, 0),
        *(pytest.param(*pair, marks=pytest.mark.long) for pair in ((0.05, 0), (0.05, 1), (0.2, 1), (0.8, 0))),
        (0.8, 1),
    ],
)
def test_amplified_rounding_is_no_reason_to_refuse(seed: int, scale: float, tmp_path: Path) -> None:
    torch.manual_seed(seed)
    module, x = Residual(5, scale), torch.randn(2, 24, 32)
    assert 1 < max(norms_by_layer(module, (x,)).values()) < 1000
    export(module.eval(), (x,), tmp_path / "a", dynamic_shapes=AXES)


def test_a_long_softmax_encoder_is_exported(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = EncoderConfig(
        classes=4, vocabulary=50, max_length=4096, dim=32, depth=2, heads=1, attention="softmax", residual=True
    )
    tokens, mask = torch.randint(0, 50, (1, 4096)), torch.ones(1, 4096, dtype=torch.bool)
    export(SkiplessEncoder(config).eval(), (tokens, mask), tmp_path / "a")


def test_a_model_without_digits_is_told_so(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = Residual(12, 3.0), torch.randn(2, 24, 32)
    with pytest.raises(
        ExportError, match="has no correct digits in fp32 on the example inputs, not even in eager"
    ) as raised:
        export(module.eval(), (x,), tmp_path / "a")
    message = str(raised.value)
    assert "‖S‖ is layers.0 " in message
    assert "layers.11 " in message
    assert "smaller scale (α)" in message
    assert not (tmp_path / "a").exists()


def test_a_module_that_does_not_run_in_float64_is_compared_with_eager(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 24, 32)
    export(Single().eval(), (x,), tmp_path / "a")
    broken = Single().eval()
    inner = broken.forward
    broken.forward = lambda x: inner(x) * (1.01 if torch.compiler.is_compiling() else 1.0)  # type: ignore[method-assign]
    with pytest.raises(ExportError, match=r"differs from eager on the example inputs: relative error 0\.0"):
        export(broken, (x,), tmp_path / "b", format="pt2", input_names=["x"])


@pytest.mark.parametrize(("factor", "scale"), [(1.0001, 0.05), (1.01, 0.2), (-1.0, 0.8), (1000.0, 3.0)])
def test_a_wrong_answer_is_refused_at_any_norm(factor: float, scale: float, tmp_path: Path) -> None:
    """Digits that are left are compared, however much the model amplifies rounding; and magnitudes where none are."""

    class Wrong(Residual):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (factor if torch.compiler.is_compiling() else 1.0)

    torch.manual_seed(0)
    with pytest.raises(ExportError, match="differs from float64"):
        export(Wrong(5, scale).eval(), (torch.randn(2, 24, 32),), tmp_path / "a", format="pt2")


def test_rows_that_eager_refuses_do_not_take_the_others_along() -> None:
    from osa_runtime.parity.feeds import Case

    torch.manual_seed(0)
    eager = Eager(Residual(1, 0.3), ["x"], ["y"], "fp32")
    x = np.random.default_rng(0).standard_normal((3, 24, 32)).astype(np.float32)
    x[1] *= 1e5
    outputs, refusals = reference_answers(eager.run, Case("mixed", {"batch": 3}, {"x": x}), "batch")
    assert list(refusals) == [1]
    assert outputs is not None
    assert np.isnan(outputs["y"][1]).all()
    assert np.array_equal(outputs["y"][2:], eager.run({"x": x[2:]})["y"])
