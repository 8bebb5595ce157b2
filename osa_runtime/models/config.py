"""Configurations of models: frozen, validated, and written to a checkpoint as they are."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, TypeVar

from osa_runtime.errors import ConfigError, InputError
from osa_runtime.exponential import check_evaluation
from osa_runtime.mechanisms import MECHANISMS
from osa_runtime.nn.block import ACTIVATIONS
from osa_runtime.nn.polynomial import POWERS
from osa_runtime.nn.projection import CONDITIONINGS

Self = TypeVar("Self", bound="BlockConfig")


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """The fields that every model has. The defaults make the paper's skipless, norm-free model."""

    classes: int
    dim: int = 64
    depth: int = 8
    heads: int = 4
    mlp_ratio: float = 2.0
    attention: str = "osa"
    power: int = 3
    conditioning: str = "none"
    spectral_lambda: float = 1.0
    residual: bool = False
    norm: bool = False
    activation: str = "leaky_relu"
    slope: float | None = None  # None: by depth, see nn.initialisation.default_slope
    alpha: float | None = None  # None: by the number of tokens, see nn.initialisation.default_alpha
    form: str = "auto"
    approximant: str = "taylor"
    squarings: str | int = "auto"

    def __post_init__(self) -> None:
        for name in ("classes", "dim", "depth", "heads"):
            positive_integer(name, getattr(self, name))
        if self.dim % self.heads:
            raise ConfigError(f"dim must be divisible by heads, got dim={self.dim} and heads={self.heads}.")
        one_of("attention", self.attention, tuple(MECHANISMS))
        one_of("power", self.power, POWERS)
        one_of("conditioning", self.conditioning, CONDITIONINGS)
        one_of("activation", self.activation, ACTIVATIONS)
        try:
            check_evaluation(self.form, self.approximant, self.squarings)
        except InputError as error:
            raise ConfigError(str(error)) from None
        for name in ("residual", "norm"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be true or false, got {getattr(self, name)!r}.")
        self._check_numbers()

    def _check_numbers(self) -> None:
        for name in ("mlp_ratio", "spectral_lambda"):
            finite_number(name, getattr(self, name), above=0.0)
        if self.alpha is not None:
            finite_number("alpha", self.alpha)
        if self.slope is not None:
            finite_number("slope", self.slope)
            if not 0 <= self.slope <= 1:
                raise ConfigError(f"slope must be between 0 and 1, got {self.slope!r}.")

    @property
    def tokens(self) -> int:
        """The longest sequence that the blocks see."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls: type[Self], fields: dict[str, Any]) -> Self:
        """Build a config from what ``to_dict`` wrote; unknown and missing fields are named."""
        known = {field.name: field for field in dataclasses.fields(cls)}
        unknown = sorted(set(fields) - set(known))
        missing = sorted(n for n, f in known.items() if f.default is dataclasses.MISSING and n not in fields)
        if unknown or missing:
            raise ConfigError(
                f"{cls.__name__} does not match these fields: unknown {unknown or 'none'}, missing {missing or 'none'}."
            )
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
        return cls(**values)


@dataclass(frozen=True, kw_only=True)
class ViTConfig(BlockConfig):
    """A model of images (batch, channels, height, width)."""

    image_size: tuple[int, int] = (8, 8)
    channels: int = 1
    patch_size: int = 2
    pool: str = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self.image_size
        if not isinstance(size, tuple) or len(size) != 2:
            raise ConfigError(f"image_size must be (height, width), got {size!r}.")
        for name, value in (("height", size[0]), ("width", size[1])):
            positive_integer(f"image_size {name}", value)
        positive_integer("channels", self.channels)
        positive_integer("patch_size", self.patch_size)
        if size[0] % self.patch_size or size[1] % self.patch_size:
            raise ConfigError(
                f"image_size {size[0]}×{size[1]} must be divisible by patch_size, got patch_size={self.patch_size}."
            )
        one_of("pool", self.pool, ("mean", "cls"))

    @property
    def tokens(self) -> int:
        patches = (self.image_size[0] // self.patch_size) * (self.image_size[1] // self.patch_size)
        return patches + (self.pool == "cls")


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(BlockConfig):
    """A model of sequences: token ids (``vocabulary``) or vectors (``features``), exactly one of the two."""

    vocabulary: int | None = None
    features: int | None = None
    max_length: int = 512
    positions: str = "sinusoidal"
    head: str = "sequence"

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.vocabulary is None) == (self.features is None):
            raise ConfigError(
                "Pass either vocabulary (token ids) or features (float vectors), "
                f"got vocabulary={self.vocabulary!r} and features={self.features!r}."
            )
        for name in ("vocabulary", "features"):
            if getattr(self, name) is not None:
                positive_integer(name, getattr(self, name))
        positive_integer("max_length", self.max_length)
        one_of("positions", self.positions, ("sinusoidal", "learned"))
        one_of("head", self.head, ("sequence", "token"))

    @property
    def tokens(self) -> int:
        return self.max_length


def positive_integer(name: str, value: object) -> None:
    if type(value) is not int or value < 1:
        raise ConfigError(f"{name} must be a whole number of at least 1, got {value!r}.")


def finite_number(name: str, value: object, above: float | None = None) -> None:
    valid = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not valid or (above is not None and value <= above):  # type: ignore[operator]  # ``valid`` has checked it
        bound = "" if above is None else f" greater than {above:g}"
        raise ConfigError(f"{name} must be a finite number{bound}, got {value!r}.")


def one_of(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices or isinstance(value, bool):
        raise ConfigError(f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}.")
