"""A sequence encoder for token ids or vectors, of variable length with a mask."""

from __future__ import annotations

from typing import Optional  # TorchScript reads these annotations and does not support X | Y

import torch
from torch import Tensor, nn

from osa_runtime.errors import InputError
from osa_runtime.interface import Interface, Roles, TensorSpec
from osa_runtime.models.config import EncoderConfig
from osa_runtime.models.embedding import classifier, isometric_linear, sinusoidal_positions
from osa_runtime.models.stack import Stack
from osa_runtime.nn.projection import check_mask, describe


class SkiplessEncoder(nn.Module):
    """tokens (batch, N) of ids, or (batch, N, features) of floats → logits.

    Logits are (batch, classes) with the ``sequence`` head, which averages the real tokens, and (batch, N, classes)
    with the ``token`` head. ``mask`` is (batch, N) boolean, True for real tokens. A sequence with no real token has
    no average: its logits are NaN.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.vocabulary, self.max_length = config.vocabulary or 0, config.max_length
        if config.vocabulary is not None:
            self.embed: nn.Module = nn.Embedding(config.vocabulary, config.dim)
        else:
            self.embed = isometric_linear(config.features or 0, config.dim)
        table = sinusoidal_positions(config.max_length, config.dim)
        if config.positions == "learned":
            self.positions = nn.Parameter(0.5 * torch.randn_like(table))
        else:
            self.register_buffer("positions", table, persistent=False)
        self.stack = Stack(config)
        self.head = classifier(config.dim, config.classes)
        self.per_token = config.head == "token"

    def interface(self) -> Interface:
        config = self.config
        tokens: int | str = "tokens" if config.max_length > 1 else 1
        kind, width = ("int64", ()) if config.vocabulary is not None else ("float32", (config.features or 0,))
        logits = ("batch", tokens, config.classes) if self.per_token else ("batch", config.classes)
        return Interface(
            (TensorSpec("tokens", kind, ("batch", tokens, *width)), TensorSpec("mask", "bool", ("batch", tokens))),
            (TensorSpec("logits", "float32", logits),),
            axes={"tokens": {"min": 1, "max": config.max_length}} if config.max_length > 1 else {},
            values={} if config.vocabulary is None else {"tokens": {"min": 0, "max": config.vocabulary - 1}},
            roles=Roles("batch", "mask"),
        )

    def forward(self, tokens: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        if not torch.jit.is_scripting():
            self._check(tokens, mask)
        elif tokens.size(1) > self.max_length:
            raise ValueError("more tokens than the model's max_length")
        if mask is not None:
            # In a graph without checks a mask of (batch, 1) would broadcast, and count once for many tokens.
            mask = mask.expand(tokens.size(0), tokens.size(1))
        x = self._flagged(self.embed(tokens), tokens, mask)
        x = self.stack(x + self.positions[:, : x.size(1)], mask)
        if self.per_token:
            return self.head(x)
        if mask is None:
            return self.head(x.mean(1))
        # Filling, not multiplying: padding may hold anything.
        total = x.masked_fill(~mask[..., None], 0.0).sum(1)
        return self.head(total / mask.sum(1, keepdim=True).to(x.dtype))

    def _flagged(self, x: Tensor, tokens: Tensor, mask: Optional[Tensor]) -> Tensor:
        """Return NaN for a real token whose id is not in the vocabulary.

        Eager refuses such ids; in an exported graph a negative one would silently count from the end of the table.
        """
        if self.vocabulary == 0:
            return x
        unknown = (tokens < 0) | (tokens >= self.vocabulary)
        if mask is not None:
            unknown = unknown & mask
        return x.masked_fill(unknown[..., None], float("nan"))

    @torch.jit.unused
    def _check(self, tokens: Tensor, mask: Tensor | None) -> None:
        config = self.config
        if config.vocabulary is not None:
            if not isinstance(tokens, Tensor) or tokens.dim() != 2 or tokens.dtype not in (torch.int64, torch.int32):
                raise InputError(f"Expected token ids, integers of shape (batch, tokens), got {describe(tokens)}.")
            _check_ids(tokens, config.vocabulary)
        elif not isinstance(tokens, Tensor) or tokens.dim() != 3 or tokens.size(-1) != config.features:
            raise InputError(f"Expected floats of shape (batch, tokens, {config.features}), got {describe(tokens)}.")
        if not torch.compiler.is_compiling() and not 1 <= tokens.size(1) <= config.max_length:
            raise InputError(
                f"Expected 1 to {config.max_length} tokens, got {tokens.size(1)}; the limit is the model's max_length."
            )
        if mask is not None:
            check_mask(mask, tokens.shape[:2])


def _check_ids(tokens: Tensor, vocabulary: int) -> None:
    if torch.compiler.is_compiling() or tokens.numel() == 0:
        return
    low, high = int(tokens.amin()), int(tokens.amax())
    if low < 0 or high >= vocabulary:
        wrong = low if low < 0 else high
        raise InputError(f"Token ids must lie in 0 … {vocabulary - 1}, got {wrong}.")
