"""A vision transformer whose skips and norms are optional, off by default."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from osa_runtime.errors import InputError
from osa_runtime.interface import Interface, Roles, TensorSpec
from osa_runtime.models.config import ViTConfig
from osa_runtime.models.embedding import StandardisedLinear, classifier, isometric_linear
from osa_runtime.models.stack import Stack
from osa_runtime.nn.projection import describe
from osa_runtime.pixels import Standardisation


class SkiplessViT(nn.Module):
    """images (batch, channels, height, width) → logits (batch, classes)."""

    __constants__ = ("takes_bytes",)  # TorchScript then leaves out the branch that is not taken

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.patch, self.channels = config.patch_size, config.channels
        self.rows, self.columns = (size // config.patch_size for size in config.image_size)
        self.takes_bytes, self.brightest = False, 255
        self.embed = isometric_linear(config.channels * config.patch_size**2, config.dim)
        self.summarise = config.pool == "cls"
        self.summary = nn.Parameter(torch.randn(1, 1, config.dim)) if self.summarise else None
        self.positions = nn.Parameter(0.5 * torch.randn(1, config.tokens, config.dim))
        self.stack = Stack(config)
        self.head = classifier(config.dim, config.classes)

    def take_bytes(self, standardisation: Standardisation) -> None:
        """Take uint8 images from now on: pixels before ``standardisation``, which becomes a part of the model."""
        mean, std = (
            torch.tensor(numbers, dtype=torch.float32).expand(self.channels).repeat_interleave(self.patch**2)
            for numbers in (standardisation.mean, standardisation.std)
        )
        self.embed = StandardisedLinear(self.embed, mean, std)
        self.takes_bytes, self.brightest = True, int(standardisation.pixels[1])

    def interface(self) -> Interface:
        dtype = "uint8" if self.takes_bytes else "float32"
        images = TensorSpec("images", dtype, ("batch", self.channels, *self.config.image_size))
        logits = TensorSpec("logits", "float32", ("batch", self.config.classes))
        values = {"images": {"min": 0, "max": self.brightest}} if self.takes_bytes else {}
        return Interface((images,), (logits,), values=values, roles=Roles("batch"))

    def forward(self, images: Tensor) -> Tensor:
        if not torch.jit.is_scripting():
            self._check(images)
        elif images.size(2) != self.rows * self.patch or images.size(3) != self.columns * self.patch:
            raise ValueError("images are not of the size that the model was built for")
        if self.takes_bytes:
            images = images.to(self.embed.weight.dtype)
        x = self.embed(self._patches(images))
        summary = self.summary
        if summary is not None:
            x = torch.cat([summary.expand(x.size(0), -1, -1), x], 1)
        x = self.stack(x + self.positions)
        return self.head(x[:, 0] if self.summarise else x.mean(1))

    def _patches(self, images: Tensor) -> Tensor:
        """(batch, patches, channels·patch²), row by row."""
        grid = images.reshape(images.size(0), self.channels, self.rows, self.patch, self.columns, self.patch)
        return grid.permute(0, 2, 4, 1, 3, 5).reshape(
            images.size(0), self.rows * self.columns, self.channels * self.patch * self.patch
        )

    @torch.jit.unused
    def _check(self, images: Tensor) -> None:
        expected = (self.channels, *self.config.image_size)
        fits = isinstance(images, Tensor) and images.dim() == 4
        if not fits or not (images.dtype == torch.uint8 if self.takes_bytes else images.is_floating_point()):
            kind = "uint8" if self.takes_bytes else "floating-point"
            raise InputError(f"Expected {kind} images (batch, {expected}), got {describe(images)}.")
        if tuple(images.shape[1:]) != expected:
            raise InputError(
                f"Expected images of (channels, height, width) = {expected}, got {tuple(images.shape[1:])}; "
                "resize them, or build the model for their size."
            )
