"""What a quantisation is asked to do."""

from __future__ import annotations

from dataclasses import dataclass

from osa_runtime.errors import InputError

WEIGHTS = ("int8",)
ACTIVATIONS = ("none", "dynamic", "static")


@dataclass(frozen=True)
class QuantizeSettings:
    """``keep`` are names of parts, with * and ? where wanted, whose weights stay in float32."""

    weights: str = "int8"
    activations: str = "none"
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _one_of("weights", self.weights, WEIGHTS)
        _one_of("activations", self.activations, ACTIVATIONS)

    @property
    def dtype(self) -> str:
        """As the manifest and the table of tolerances call it: 8-bit weights, and 8-bit activations beside them."""
        return "w8" if self.activations == "none" else "w8a8"

    @property
    def weight_bits(self) -> int:
        """Without VNNI instructions a CPU adds two products of uint8 and int8 in 16 bits, and saturates silently.

        With weights of 7 bits it cannot: 2 · 255 · 64 < 2¹⁵. So the answers do not depend on the CPU.
        """
        return 8 if self.activations == "none" else 7


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{name}={value!r}: expected {' or '.join(choices)}.")
