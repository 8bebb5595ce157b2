"""The models that experiments compare, by name: what differs from the skipless model with orthogonal attention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Okabe and Ito's colours, which stay apart for every kind of colour vision.
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, BLACK = (
    "#0072b2", "#d98c00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#333333",
)  # fmt: skip


@dataclass(frozen=True)
class Contender:
    """``fields`` are those of a configuration or of the training settings, as far as they differ from the defaults."""

    name: str
    title: str
    colour: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    dashes: str = "-"


SKIPS = {"residual": True, "norm": True}
SPECTRAL = {"conditioning": "spectral"}
SOFTMAX = {"attention": "softmax"}

OSA = Contender("osa", "OSA, skipless", BLUE)
SOFTMAX_SKIPLESS = Contender("softmax", "softmax, skipless", VERMILION, SOFTMAX)
SOFTMAX_SKIPS = Contender("softmax-skips", "softmax, skips and norm", GREEN, SOFTMAX | SKIPS)
OSA_SKIPS = Contender("osa-skips", "OSA, skips and norm", SKY, SKIPS)
POLYNOMIAL = Contender("polynomial", "polynomial (cubic), skips and norm", PURPLE, {"attention": "polynomial"} | SKIPS)
USUAL = Contender(
    "usual", "ordinary ViT (softmax, skips, norm, GELU, usual start)", BLACK,
    SOFTMAX | SKIPS | {"activation": "gelu", "initialisation": "usual"},
)  # fmt: skip


def conditioned(contender: Contender, conditioning: str = "spectral") -> Contender:
    """The same with spectral conditioning, dashed in figures."""
    fields = {**contender.fields, "conditioning": conditioning}
    name, title = f"{contender.name}-{conditioning}", f"{contender.title}, conditioned"
    return Contender(name, title, contender.colour, fields, "--")
