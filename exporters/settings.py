"""The settings of an export, in one frozen and validated object."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from osa_runtime.errors import InputError
from osa_runtime.exponential import APPROXIMANTS, CORES, FORMS, ExponentialMethod
from osa_runtime.formats import FORMATS
from osa_runtime.targets import target_named

OPSETS = range(18, 24)
DEFAULT_OPSET = 18


@dataclass(frozen=True)
class ExportSettings:
    """``form``, ``approximant`` and ``squarings`` change an ``ExponentialMethod``; None keeps the model's own.

    ``core`` float32 leaves no float64 in the graph, for runtimes that have none. ``function_classes`` are those of
    modules that become functions, as package.module:Class; they have no effect where ``functions`` are inlined.
    """

    format: str = "onnx"
    opset: int = DEFAULT_OPSET
    dtype: str = "fp32"
    functions: str = "keep"
    form: str | None = None
    approximant: str | None = None
    squarings: str | int | None = None
    external_data: bool = False
    core: str = "float64"
    function_classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _one_of("format", self.format, tuple(FORMATS))
        _one_of("dtype", self.dtype, ("fp32", "fp16"), _WITHOUT_BF16 if self.dtype in ("bf16", "bfloat16") else "")
        _one_of("functions", self.functions, ("keep", "inline"), " For modules as functions, pass a list of classes.")
        _one_of("form", self.form, (None, *FORMS))
        _one_of("approximant", self.approximant, (None, *APPROXIMANTS))
        _one_of("core", self.core, CORES)
        if self.opset not in OPSETS:
            raise InputError(
                f"opset={self.opset}: expected {OPSETS[0]} to {OPSETS[-1]}; "
                f"{DEFAULT_OPSET} is read by every known runtime."
            )
        self._check_onnx_only()
        fixed = isinstance(self.squarings, int) and not isinstance(self.squarings, bool)
        if self.squarings not in (None, "auto") and not (fixed and 0 <= int(self.squarings) <= 20):
            raise InputError(f"squarings={self.squarings!r}: expected auto or a whole number from 0 to 20.")
        if self.core == "float32" and not fixed:
            raise InputError("core='float32' is for graphs without branches: add squarings=4, or another number.")

    def applied_to(self, evaluation: ExponentialMethod) -> ExponentialMethod:
        """The model's evaluation, with the requested settings in place of its own."""
        asked: dict[str, Any] = {"form": self.form, "approximant": self.approximant, "squarings": self.squarings}
        return replace(evaluation, **{name: value for name, value in asked.items() if value is not None})

    def _check_onnx_only(self) -> None:
        """Refuse an argument that would be ignored."""
        given = {
            f"opset={self.opset}": self.opset != DEFAULT_OPSET,
            f"functions={self.functions!r}": self.functions != "keep",
            f"A function of {', '.join(self.function_classes)}": bool(self.function_classes),
            "external_data=True": self.external_data,
        }
        for argument in (argument for argument, present in given.items() if present and self.format != "onnx"):
            raise InputError(f"{argument} is for format='onnx' only, not for {self.format}; leave it out.")
        if self.core != "float64" and self.format == "torchscript":
            raise InputError(f"core={self.core!r} is for format='onnx' and 'pt2', not for torchscript; leave it out.")


def settings_for(target: str | None, **options: Any) -> ExportSettings:
    """The settings of an export, with those of a target; an option at its default is left to the target.

    ``functions`` may be a list of classes.
    """
    if not isinstance(functions := options.get("functions", "keep"), str):
        options |= {"functions": "keep", "function_classes": _class_names(functions)}
    if target is None:
        return ExportSettings(**options)
    chosen = target_named(target)
    defaults = ExportSettings()
    given = {name: value for name, value in options.items() if value != getattr(defaults, name)}
    if "control_flow" in chosen.lacks and given.get("squarings") == "auto":
        raise InputError(
            f"squarings='auto' contradicts target={target!r}: it needs a loop, and {chosen.runtime} "
            f"{chosen.lacks['control_flow']}. Pass a number, or none."
        )
    return ExportSettings(**chosen.applied(given))


def _class_names(functions: Any) -> tuple[str, ...]:
    if not isinstance(functions, Iterable) or not all(isinstance(one, (str, type)) for one in functions):
        raise InputError(f"functions={functions!r}: expected keep, inline, or a list of classes of modules.")
    return tuple(one if isinstance(one, str) else class_name(one) for one in functions)


def class_name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


_WITHOUT_BF16 = " ONNX Runtime's CPU provider has no bf16 kernels; use fp16 or fp32."


def _one_of(name: str, value: object, choices: tuple[object, ...], hint: str = "") -> None:
    if value not in choices:
        known = ", ".join(str(choice) for choice in choices if choice is not None)
        raise InputError(f"{name}={value!r}: expected one of {known}.{hint}")
