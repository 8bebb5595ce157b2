"""Models that are built from one configurable block, and the checkpoints that hold them."""

from osa_runtime.models.checkpoint import load_checkpoint, save_checkpoint
from osa_runtime.models.config import EncoderConfig, ViTConfig
from osa_runtime.models.encoder import SkiplessEncoder
from osa_runtime.models.vit import SkiplessViT

__all__ = [
    "EncoderConfig",
    "SkiplessEncoder",
    "SkiplessViT",
    "ViTConfig",
    "load_checkpoint",
    "save_checkpoint",
]
