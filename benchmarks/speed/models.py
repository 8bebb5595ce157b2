"""The models that are measured: their sizes, weights whose attention is as strong as a trained one's, inputs."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from osa_runtime import EncoderConfig, OrthogonalSelfAttention, SkiplessEncoder, SkiplessViT, ViTConfig
from speed.attention_inputs import TRAINED_NORM, spectral_norm

EXAMPLE_TOKENS = 16


@dataclass(frozen=True)
class Subject:
    """One model; ``tokens`` is the length of its sequences.

    ``only_latency`` names contenders that do not take part in batches, to save minutes.
    """

    name: str
    config: ViTConfig | EncoderConfig
    tokens: int
    only_latency: tuple[str, ...] = ()

    def build(self, attention: str = "osa") -> nn.Module:
        """The same model with another attention; orthogonal attention has ‖S‖₂ = 2 in every layer."""
        torch.manual_seed(0)
        config = replace(self.config, attention=attention)
        model = (SkiplessViT(config) if isinstance(config, ViTConfig) else SkiplessEncoder(config)).eval()
        strengthen(model, self.inputs(1))
        return model.requires_grad_(False)

    def inputs(self, batch: int) -> Tensor:
        generator = torch.Generator().manual_seed(batch)
        if isinstance(self.config, ViTConfig):
            return torch.randn(batch, self.config.channels, *self.config.image_size, generator=generator)
        assert self.config.vocabulary is not None
        return torch.randint(0, self.config.vocabulary, (batch, self.tokens), generator=generator)

    @property
    def input_name(self) -> str:
        return "images" if isinstance(self.config, ViTConfig) else "tokens"

    def example(self) -> tuple[Tensor, dict[int, torch.export.Dim]]:
        """For the export: two rows of short sequences, which are captured and compared faster, and dynamic axes."""
        rows, batch = self.inputs(2), torch.export.Dim("batch", min=1)
        if isinstance(self.config, ViTConfig):
            return rows, {0: batch}
        return rows[:, :EXAMPLE_TOKENS], {0: batch, 1: torch.export.Dim("tokens", min=1, max=self.config.max_length)}


def strengthen(model: nn.Module, example: Tensor) -> None:
    """Set every α so that ‖S‖₂ is that of trained models; at the start of training it is far smaller, and faster."""

    def set_alpha(layer: OrthogonalSelfAttention, arguments: tuple[Tensor, ...]) -> None:
        q, k, _ = layer.project(arguments[0])
        layer.alpha.fill_(TRAINED_NORM / spectral_norm(q, k, layer.project.width**-0.5))

    layers = [module for module in model.modules() if isinstance(module, OrthogonalSelfAttention)]
    hooks = [layer.register_forward_pre_hook(set_alpha) for layer in layers]
    with torch.no_grad():
        model(example)
    for hook in hooks:
        hook.remove()


def encoder_config(tokens: int, depth: int) -> EncoderConfig:
    sizes = {"dim": 256, "depth": depth, "heads": 4, "mlp_ratio": 4.0}
    return EncoderConfig(classes=10, vocabulary=256, max_length=tokens, **sizes)


VIT_S_CONFIG = ViTConfig(
    classes=1000,
    image_size=(224, 224),
    channels=3,
    patch_size=16,
    dim=384,
    depth=12,
    heads=6,
    mlp_ratio=4.0,
    pool="cls",
)
DIGITS = Subject("digits ViT", ViTConfig(classes=10), 16)
VIT_S = Subject("ViT-S", VIT_S_CONFIG, 197)
ENCODER = Subject("long encoder", encoder_config(4096, 6), 4096, only_latency=("TorchScript", "pt2"))
QUICK = (
    Subject("digits ViT", ViTConfig(classes=10, depth=1), 16),
    Subject("long encoder", encoder_config(64, 1), 64),
)
