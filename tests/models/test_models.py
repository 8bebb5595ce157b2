"""Both models in their configurations: shapes, masks, positions, and inputs that do not fit."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from exponents import normal
from osa_runtime.errors import ConfigError, InputError
from osa_runtime.models import EncoderConfig, SkiplessEncoder, SkiplessViT, ViTConfig

ATTENTIONS = [("osa", 3), ("softmax", 3), ("polynomial", 1), ("polynomial", 3)]
SMALL = {"classes": 5, "dim": 16, "depth": 2, "heads": 2}


@pytest.mark.parametrize(("attention", "power"), ATTENTIONS)
@pytest.mark.parametrize("conditioning", ["none", "spectral"])
@pytest.mark.parametrize(("residual", "norm"), list(itertools.product([False, True], repeat=2)))
def test_every_configuration_of_the_vit(
    attention: str, power: int, conditioning: str, residual: bool, norm: bool
) -> None:
    config = ViTConfig(
        **SMALL, attention=attention, power=power, conditioning=conditioning, residual=residual, norm=norm
    )
    model = SkiplessViT(config)
    logits = model(normal(3, 1, 8, 8))
    assert logits.shape == (3, 5)
    logits.sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())
    kinds = {type(m).__name__ for m in model.modules()}
    assert ("LayerNorm" in kinds) == norm


def test_patches_are_read_row_by_row() -> None:
    model = SkiplessViT(ViTConfig(**SMALL, image_size=(4, 6), channels=2, patch_size=2))
    image = torch.arange(48.0).reshape(1, 2, 4, 6)
    patches = model._patches(image)
    assert patches.shape == (1, 6, 8)
    assert torch.equal(patches[0, 1], image[0, :, 0:2, 2:4].flatten())
    assert torch.equal(patches[0, 3], image[0, :, 2:4, 0:2].flatten())


def test_vit_with_a_summary_token() -> None:
    config = ViTConfig(**SMALL, image_size=(28, 28), patch_size=2, pool="cls")
    assert config.tokens == 197
    assert SkiplessViT(config)(normal(2, 1, 28, 28)).shape == (2, 5)


@pytest.mark.parametrize(("attention", "power"), ATTENTIONS)
@pytest.mark.parametrize("head", ["sequence", "token"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("kind", ["ids", "vectors"])
def test_encoder_ignores_padding(kind: str, positions: str, head: str, attention: str, power: int) -> None:
    torch.manual_seed(0)
    source = {"vocabulary": 11} if kind == "ids" else {"features": 3}
    config = EncoderConfig(
        **SMALL, **source, attention=attention, power=power, positions=positions, head=head, norm=True, residual=True
    )
    model = SkiplessEncoder(config).eval()
    tokens = torch.randint(0, 11, (3, 20)) if kind == "ids" else normal(3, 20, 3)
    lengths = [1, 7, 20]
    mask = torch.arange(20) < torch.tensor(lengths)[:, None]
    together = model(tokens, mask)
    for i, n in enumerate(lengths):
        alone = model(tokens[i : i + 1, :n])[0]
        padded = together[i, :n] if head == "token" else together[i]
        torch.testing.assert_close(padded, alone, rtol=1e-4, atol=1e-5)


def test_a_sequence_without_a_real_token_has_no_average() -> None:
    model = SkiplessEncoder(EncoderConfig(**SMALL, vocabulary=4))
    mask = torch.tensor([[True, True], [False, False]])
    out = model(torch.zeros(2, 2, dtype=torch.int64), mask)
    assert bool(out[0].isfinite().all())
    assert bool(out[1].isnan().all())


def test_the_order_of_tokens_matters() -> None:
    model = SkiplessEncoder(EncoderConfig(**SMALL, vocabulary=9, alpha=0.5))
    tokens = torch.tensor([[1, 2, 3, 4]])
    assert not torch.allclose(model(tokens), model(tokens.flip(1)), atol=1e-4)


@pytest.mark.parametrize(
    ("config", "tokens", "message"),
    [
        ({"vocabulary": 5}, torch.tensor([[0, 5]]), r"0 … 4, got 5"),
        ({"vocabulary": 5}, torch.tensor([[-1, 0]]), r"0 … 4, got -1"),
        ({"vocabulary": 5}, torch.zeros(1, 3), "integers of shape"),
        ({"features": 2}, torch.zeros(1, 3, 3), r"\(batch, tokens, 2\)"),
        ({"vocabulary": 5, "max_length": 2}, torch.zeros(1, 3).long(), "Expected 1 to 2 tokens, got 3"),
        ({"vocabulary": 5}, torch.zeros(1, 0).long(), "Expected 1 to 512 tokens, got 0"),
    ],
    ids=["id too large", "negative id", "float ids", "features", "too long", "empty"],
)
def test_sequences_that_do_not_fit(config: dict[str, int], tokens: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        SkiplessEncoder(EncoderConfig(**SMALL, **config))(tokens)


@pytest.mark.parametrize("images", [torch.zeros(1, 1, 8, 9), torch.zeros(1, 3, 8, 8), torch.zeros(8, 8)], ids=str)
def test_images_that_do_not_fit(images: Tensor) -> None:
    with pytest.raises(InputError, match="Expected"):
        SkiplessViT(ViTConfig(**SMALL))(images)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dim": 10, "heads": 3}, "dim must be divisible by heads, got dim=10 and heads=3"),
        ({"depth": 0}, "depth must be a whole number of at least 1, got 0"),
        ({"heads": 2.0}, "heads must be a whole number"),
        ({"dim": True}, "dim must be a whole number"),
        ({"attention": "linear"}, "attention must be one of osa, softmax, polynomial, got 'linear'"),
        ({"power": 2}, "power must be one of 1, 3"),
        ({"image_size": (8, 9)}, "must be divisible by patch_size"),
        ({"image_size": 8}, "image_size must be"),
        ({"slope": 2.0}, "slope must be between 0 and 1"),
        ({"alpha": float("nan")}, "alpha must be a finite number, got nan"),
        ({"mlp_ratio": 0}, "mlp_ratio must be a finite number greater than 0"),
        ({"residual": "yes"}, "residual must be true or false"),
        ({"squarings": -1}, "squarings must be 'auto'"),
        ({"pool": "max"}, "pool must be one of mean, cls"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_configurations_that_cannot_be_built(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ViTConfig(**({"classes": 3} | fields))  # type: ignore[arg-type]


@pytest.mark.parametrize("fields", [{}, {"vocabulary": 3, "features": 3}], ids=["neither", "both"])
def test_an_encoder_reads_ids_or_vectors(fields: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="either vocabulary"):
        EncoderConfig(classes=2, **fields)  # type: ignore[arg-type]


def test_configs_are_frozen() -> None:
    with pytest.raises(AttributeError):
        ViTConfig(classes=3).dim = 5  # type: ignore[misc]
