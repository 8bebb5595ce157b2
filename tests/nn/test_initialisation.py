"""At the start the signal keeps its norm through depth, and the attention's Jacobian is well conditioned."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import nn

from exponents import normal
from osa_runtime.models import EncoderConfig, SkiplessEncoder, SkiplessViT, ViTConfig
from osa_runtime.nn import IsometricMLP, OrthogonalSelfAttention, SoftmaxSelfAttention
from osa_runtime.nn.initialisation import default_alpha, default_slope, packed_projection, semi_orthogonal


@pytest.mark.parametrize(("rows", "columns"), [(5, 5), (12, 3), (3, 12), (1, 1), (1, 7)])
def test_semi_orthogonal(rows: int, columns: int) -> None:
    m = semi_orthogonal(rows, columns).double()
    gram = m @ m.T if rows <= columns else m.T @ m
    torch.testing.assert_close(gram, torch.eye(min(rows, columns), dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("dim", "heads"), [(16, 4), (16, 2), (16, 1), (15, 3)])
def test_queries_and_keys_of_a_head_look_at_orthogonal_subspaces(dim: int, heads: int) -> None:
    width = dim // heads
    packed = packed_projection(dim, heads).double().reshape(heads, 3, width, dim)
    values = packed[:, 2].reshape(dim, dim)
    torch.testing.assert_close(values @ values.T, torch.eye(dim, dtype=torch.float64), rtol=0, atol=1e-6)
    for head in packed:
        pair = head[:2].reshape(2 * width, dim)
        if 2 * width <= dim:
            torch.testing.assert_close(pair @ pair.T, torch.eye(2 * width, dtype=torch.float64), rtol=0, atol=1e-6)


def test_mlp_without_its_activation_is_a_rotation() -> None:
    mlp = IsometricMLP(12, 48, slope=1.0)
    x = normal(30, 12)
    torch.testing.assert_close(mlp(x).norm(dim=-1), x.norm(dim=-1), rtol=1e-5, atol=0)


@pytest.mark.parametrize(("seed", "mlp_ratio"), [(0, 1.0), (1, 2.0), (2, 2.0), (3, 4.0)])
def test_norm_survives_64_layers(seed: int, mlp_ratio: float) -> None:
    torch.manual_seed(seed)
    model = SkiplessViT(ViTConfig(classes=10, depth=64, mlp_ratio=mlp_ratio))
    x = normal(4, 16, 64, seed=seed)
    with torch.no_grad():
        ratio = (model.stack(x).norm(dim=(1, 2)) / x.norm(dim=(1, 2))).tolist()
    assert all(0.5 <= r <= 2 for r in ratio), ratio


def test_tokens_stay_distinct_through_64_layers() -> None:
    """Without skips softmax makes all tokens equal; orthogonal attention does not."""
    spread = {}
    for attention in ("osa", "softmax"):
        torch.manual_seed(0)
        stack = SkiplessViT(ViTConfig(classes=10, depth=64, attention=attention)).stack
        with torch.no_grad():
            y = stack(normal(4, 16, 64))
        spread[attention] = float((y - y.mean(1, keepdim=True)).norm() / y.norm())
    assert spread["osa"] > 0.8
    assert spread["softmax"] < 1e-2


def condition_number(layer: nn.Module, tokens: int, dim: int) -> float:
    x = normal(1, tokens, dim, seed=tokens)
    jacobian = torch.autograd.functional.jacobian(layer, x).reshape(tokens * dim, tokens * dim)
    values = torch.linalg.svdvals(jacobian.double())
    return float(values[0] / values[-1])


def large_condition_number(layer: nn.Module, tokens: int, dim: int) -> float:
    """From products with the Jacobian and its transpose alone, by Lanczos' method."""
    layer, x = layer.double(), normal(1, tokens, dim, seed=tokens).double().requires_grad_()
    y = layer(x)
    u = torch.zeros_like(y, requires_grad=True)
    (transposed,) = torch.autograd.grad(y, x, u, create_graph=True)  # linear in u: its derivative is the Jacobian

    def gram(v: np.ndarray) -> np.ndarray:
        direction = torch.from_numpy(v.reshape(x.shape).copy())
        (forward,) = torch.autograd.grad(transposed, u, direction, retain_graph=True)
        return torch.autograd.grad(y, x, forward, retain_graph=True)[0].numpy().ravel()

    operator = LinearOperator((x.numel(), x.numel()), matvec=gram, dtype=np.float64)
    start = np.random.default_rng(0).standard_normal(x.numel())
    ends = [eigsh(operator, k=1, which=end, tol=1e-3, ncv=40, v0=start)[0][0] for end in ("LA", "SA")]
    return float((ends[0] / ends[1]) ** 0.5)


@pytest.mark.parametrize(("tokens", "dim", "heads"), [(8, 32, 4), (8, 32, 2), (16, 32, 4), (16, 48, 3)])
def test_jacobian_of_the_attention_layer(tokens: int, dim: int, heads: int) -> None:
    torch.manual_seed(0)
    assert condition_number(OrthogonalSelfAttention(dim, heads), tokens, dim) <= 2
    assert condition_number(SoftmaxSelfAttention(dim, heads), tokens, dim) >= 1e3


def test_both_ways_to_a_condition_number_agree() -> None:
    torch.manual_seed(0)
    layer = OrthogonalSelfAttention(16, 2, alpha=0.05)
    exact = condition_number(layer, 12, 16)
    assert large_condition_number(layer, 12, 16) == pytest.approx(exact, rel=1e-2)


SIZES = [(8, 64, 4), (16, 64, 1), (16, 64, 64), (17, 192, 3), (49, 64, 4), (64, 64, 4), (197, 64, 1), (1024, 16, 2)]


@pytest.mark.parametrize(("tokens", "dim", "heads"), SIZES)
def test_the_jacobian_stays_well_conditioned_as_sequences_grow(tokens: int, dim: int, heads: int) -> None:
    torch.manual_seed(0)
    layer = OrthogonalSelfAttention(dim, heads, alpha=default_alpha(tokens))
    assert 1.05 < large_condition_number(layer, tokens, dim) < 2


def test_models_start_by_their_number_of_tokens() -> None:
    sizes = {"classes": 3, "dim": 8, "depth": 1, "heads": 2}
    vit = SkiplessViT(ViTConfig(image_size=(32, 32), patch_size=2, **sizes))
    encoder = SkiplessEncoder(EncoderConfig(vocabulary=5, max_length=400, **sizes))
    chosen = SkiplessViT(ViTConfig(alpha=0.015, **sizes))
    starts = [model.stack.blocks[0].attention.alpha[0].item() for model in (vit, encoder, chosen)]
    assert starts == pytest.approx([0.2 / 256, 0.2 / 400, 0.015])


def test_slope_grows_with_depth() -> None:
    assert [round(default_slope(depth), 2) for depth in (1, 2, 8, 32, 64)] == [0, 0, 0.5, 0.75, 0.82]
