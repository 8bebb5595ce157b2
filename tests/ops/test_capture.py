"""The operator under torch.jit.script, torch.export and torch.compile, with sizes the capture has not seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from exponents import normal, scale_for
from osa_runtime.errors import ExponentRangeError
from osa_runtime.ops import orthogonal_attention
from osa_runtime.ops.interception import intercept

FORMS = ["auto", "dense", "lowrank"]


class Attention(nn.Module):
    def __init__(self, form: str, approximant: str = "taylor") -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor([0.05, 0.1, -0.2]))
        self.form, self.approximant = form, approximant

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return orthogonal_attention(q, k, v, self.alpha, mask=mask, form=self.form, approximant=self.approximant)


def inputs(batch: int, tokens: int, factor: float = 1.0) -> tuple[Tensor, ...]:
    q, k, v = (normal(batch, 3, tokens, 8, seed=seed) for seed in (1, 2, 3))
    return (
        q * factor,
        k,
        v[..., :5].contiguous(),
        torch.arange(tokens)[None, None] < tokens - torch.arange(batch)[:, None, None],
    )


def agrees(captured: Callable[..., Tensor], eager: nn.Module) -> None:
    """Sizes on both sides of N = 2d, one token, and norms that need from 0 to 8 squarings."""
    for batch, tokens, factor in ((2, 40, 0.01), (1, 1, 1.0), (4, 16, 1.0), (3, 77, 30.0)):
        x = inputs(batch, tokens, factor)
        torch.testing.assert_close(captured(*x), eager(*x), rtol=0, atol=2e-5)
    q, k, v, mask = inputs(1, 50)
    k = q + 1e-3 * k  # the branch to float64
    q = q * scale_for(q, k, 100.0).float()[..., None, None]
    torch.testing.assert_close(captured(q, k, v, mask), eager(q, k, v, mask), rtol=0, atol=1e-3)


@pytest.mark.parametrize("approximant", ["taylor", "pade"])
@pytest.mark.parametrize("form", FORMS)
def test_script(form: str, approximant: str, tmp_path: Path) -> None:
    eager = Attention(form, approximant).eval()
    torch.jit.script(eager).save(str(tmp_path / "a.pt"))
    scripted = torch.jit.load(str(tmp_path / "a.pt"))
    with torch.no_grad():
        agrees(scripted, eager)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "gradients"),
    [
        ("auto", False),
        ("dense", True),
        pytest.param("auto", True, marks=pytest.mark.long),
        pytest.param("lowrank", True, marks=pytest.mark.long),
    ],
)
def test_export_with_dynamic_batch_and_tokens(form: str, gradients: bool, tmp_path: Path) -> None:
    """auto holds both forms; with gradients enabled torch compiles each branch first, which takes much longer."""
    eager = Attention(form).eval()
    batch, tokens = torch.export.Dim("batch"), torch.export.Dim("tokens")
    axes = ({0: batch, 2: tokens},) * 4
    with torch.set_grad_enabled(gradients):
        program = torch.export.export(eager, inputs(2, 40), dynamic_shapes=axes)
    torch.export.save(program, tmp_path / "a.pt2")
    with torch.no_grad():
        agrees(torch.export.load(tmp_path / "a.pt2").module(), eager)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["dense", "lowrank"])
def test_compile_without_gradients(form: str) -> None:
    torch.compiler.reset()
    eager = Attention(form).eval()
    with torch.no_grad():
        agrees(torch.compile(eager, fullgraph=True, dynamic=True, backend="aot_eager"), eager)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning:torch._inductor")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_with_gradients(backend: str) -> None:
    """One graph for all lengths, on both sides of N = 2d, for masks, and for norms that need float64."""
    torch.compiler.reset()
    eager = Attention("auto")
    compiled = torch.compile(eager, fullgraph=True, dynamic=True, backend=backend)
    for tokens, factor in ((40, 1.0), (9, 1.0), (77, 30.0)):
        x = [t.requires_grad_() if t.is_floating_point() else t for t in inputs(2, tokens, factor)]
        weight = normal(2, 3, tokens, 5, seed=4)  # a sum of squares would not depend on q, k and α at all
        expected = torch.autograd.grad((eager(*x) * weight).sum(), [*x[:3], eager.alpha])
        actual = torch.autograd.grad((compiled(*x) * weight).sum(), [*x[:3], eager.alpha])
        for a, b in zip(actual, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_compiled_graph_raises_as_eager_does() -> None:
    torch.compiler.reset()
    q, k, v, mask = inputs(1, 40)
    with pytest.raises(ExponentRangeError, match=r"‖S‖ is up to"):
        torch.compile(Attention("lowrank"), fullgraph=True, backend="aot_eager")(q * 1e6, k, v, mask)


def test_a_graph_gives_nan_where_eager_would_raise() -> None:
    scripted = torch.jit.script(Attention("dense"))
    q, k, v, mask = inputs(2, 10)
    q[1] *= 1e9
    out = scripted(q, k, v, mask)
    assert bool(out[0].isfinite().all())
    assert bool(out[1].isnan().all())


def test_interception_replaces_the_operator_for_its_time_only() -> None:
    q, k, v, _ = inputs(1, 4)
    with intercept(lambda q, k, v, *rest: v + 1):
        assert torch.equal(orthogonal_attention(q, k, v, 0.1), v + 1)
    assert not torch.equal(orthogonal_attention(q, k, v, 0.1), v + 1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize("form", FORMS)
def test_cuda_agrees_with_the_cpu(form: str) -> None:
    eager = Attention(form)
    on_gpu = Attention(form).cuda()
    for tokens in (3, 40):
        x = inputs(2, tokens)
        torch.testing.assert_close(on_gpu(*(t.cuda() for t in x)).cpu(), eager(*x), rtol=0, atol=2e-5)
