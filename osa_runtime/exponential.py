"""The method of evaluating the exponential: one description, from a layer's arguments to an artifact's manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from osa_runtime.errors import InputError

FORMS = ("auto", "dense", "lowrank")
APPROXIMANTS = ("taylor", "pade")
CORES = ("float64", "float32")  # where float32 would lose digits; float32 alone returns NaN there
MOST_FIXED_SQUARINGS = 46  # as many as the largest norm of a float64 result needs


@dataclass(frozen=True)
class ExponentialMethod:
    """The arguments ``form``, ``approximant`` and ``squarings`` of ``orthogonal_attention``, which documents them."""

    form: str = "auto"
    approximant: str = "taylor"
    squarings: str | int = "auto"

    def __post_init__(self) -> None:
        check_evaluation(self.form, self.approximant, self.squarings)

    @property
    def is_fixed(self) -> bool:
        """True if the number of squarings is fixed, which limits ‖S‖."""
        return self.squarings != "auto"

    @classmethod
    def recorded(cls, fields: Mapping[str, Any]) -> ExponentialMethod:
        """The method recorded in a manifest; fields that are missing, or mixed among layers, have the default."""
        names = ("form", "approximant", "squarings")
        return cls(**{name: fields[name] for name in names if fields.get(name, "mixed") != "mixed"})


def check_evaluation(form: str, approximant: str, squarings: str | int) -> None:
    for name, value, choices in (("form", form, FORMS), ("approximant", approximant, APPROXIMANTS)):
        if value not in choices:
            raise InputError(f"{name} must be one of {', '.join(choices)}, got {value!r}.")
    whole = isinstance(squarings, int) and not isinstance(squarings, bool)
    if squarings != "auto" and not (whole and 0 <= int(squarings) <= MOST_FIXED_SQUARINGS):
        raise InputError(
            f"squarings must be 'auto' or a whole number from 0 to {MOST_FIXED_SQUARINGS}, got {squarings!r}."
        )
