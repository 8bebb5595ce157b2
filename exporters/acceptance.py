"""The check that an artifact must pass before it gets its name: its answers on the example and at other sizes."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from osa_runtime.errors import ExportError, InputError
from osa_runtime.exponential import ExponentialMethod
from osa_runtime.exporters.eager import Eager, answer_of, oracle_of
from osa_runtime.exporters.examples import Examples
from osa_runtime.interface import Interface
from osa_runtime.ops import attention
from osa_runtime.ops.interception import intercept
from osa_runtime.ops.spectral_norm import masked, spectral_norm
from osa_runtime.parity.certificate import OutputResult
from osa_runtime.parity.comparison import Tolerance
from osa_runtime.parity.feeds import Case
from osa_runtime.parity.judgement import Answers, Rules, judge
from osa_runtime.parity.tolerances import Spread, relative_tolerance, rounding_move
from osa_runtime.runtime.session import load

Axis = tuple[str, int] | None


@dataclass(frozen=True)
class Exported:
    """A written model: how to run it, and what its manifest will record."""

    run: Run
    format: str
    dtype: str
    depth: int
    evaluation: ExponentialMethod

    def tolerance(self, norm: float) -> Tolerance:
        return Tolerance(relative_tolerance(self.format, self.dtype, self.depth, norm))


def check_answers(
    module: nn.Module, exported: Exported, examples: Examples, outputs: tuple[str, ...], batch: str | None
) -> None:
    """Judge the example, then each dynamic axis at sizes that the capture has not seen.

    An axis that became static fails here and is named. ``module`` is the caller's, in the exported type:
    eager PyTorch, and in float64 the oracle; eager alone where it does not run in float64. ``batch`` is the axis of
    rows that are judged one by one.
    """
    _Acceptance(module, exported, examples, outputs, batch).check()


class _Acceptance:
    def __init__(
        self, module: nn.Module, exported: Exported, examples: Examples, outputs: tuple[str, ...], batch: str | None
    ) -> None:
        self.batch = batch
        self.module, self.exported, self.examples, self.outputs = module, exported, examples, outputs
        self.eager = eager_runner(module)
        self.oracle = oracle_of(module, examples.names, outputs)

    def check(self) -> None:
        for axis, inputs in [(None, self.examples.tensors), *self.examples.other_sizes()]:
            expected = self.eager(inputs)
            if not all(np.isfinite(x).all() for x in expected):
                raise _not_finite(self.examples, axis)
            actual = _answer(self.exported.run, inputs, axis)
            if len(actual) != len(expected):
                raise ExportError(
                    f"The exported model has {len(actual)} outputs {_at(axis)}, eager has {len(expected)}."
                )
            for result in self._judge(inputs, actual, expected):
                if result.verdict == "fail":
                    raise self._differs(result, actual, axis)
                # At another size only the size is tested; digits are tested on the example.
                if result.verdict == "undecided" and axis is None:
                    raise self._no_digits(result, inputs)

    def _judge(
        self, inputs: Sequence[Tensor], actual: Sequence[Array], expected: Sequence[Array]
    ) -> tuple[OutputResult, ...]:
        case = self._case(inputs)
        truth = answer_of(self.oracle, case.feeds)
        norms = self.oracle.norms if self.oracle is not None and truth is not None else self._norms(inputs)
        mine, theirs = (dict(zip(self.outputs, values, strict=True)) for values in (actual, expected))
        spread = None if self.oracle is None or truth is None else _spread(self.oracle, truth, self.exported.dtype)
        rules = Rules(self.exported.tolerance, self.batch, spread=spread)
        return judge(case, Answers(mine, theirs, truth, norms), rules, self.outputs).outputs

    def _case(self, inputs: Sequence[Tensor]) -> Case:
        feeds = {name: x.detach().cpu().numpy() for name, x in zip(self.examples.names, inputs, strict=True)}
        return Case("example", Interface(self.examples.input_specs()).sizes(feeds), feeds)

    def _norms(self, inputs: Sequence[Tensor]) -> Array:
        return np.array([max(norms_by_layer(self.module, inputs).values(), default=0.0)])

    def _differs(self, result: OutputResult, actual: Sequence[Array], axis: Axis) -> ExportError:
        truth = "float64" if result.artifact is not None else "eager"
        hint = _too_few(actual[self.outputs.index(result.name)], self.exported.evaluation)
        return ExportError(f"The output '{result.name}' differs from {truth} {_at(axis)}: {result.reason}.{hint}")

    def _no_digits(self, result: OutputResult, inputs: Sequence[Tensor]) -> ExportError:
        norms = norms_by_layer(self.module, inputs)
        said = ", ".join(f"{layer or 'the module'} {norm:.3g}" for layer, norm in norms.items())
        layers = f" ‖S‖ is {said}." if norms else ""
        wider = "dtype='fp32', " if self.exported.dtype == "fp16" else ""
        return ExportError(
            f"The output '{result.name}' has no correct digits in {self.exported.dtype} on the example inputs, not "
            f"even in eager, so that no export could be checked: {result.reason}.{layers} Use {wider}a smaller scale "
            "(α) in these layers, or example inputs as the model sees them in use; such a model needs float64, "
            "for which there is no artifact."
        )


def _spread(oracle: Eager, truth: Mapping[str, Array], dtype: str) -> Callable[[Case], Spread]:
    amount = rounding_move(dtype)
    return lambda case: Spread.of(truth, lambda seed: oracle.moved(case.feeds, amount, seed, coarse=False))


def _answer(run: Run, inputs: Sequence[Tensor], axis: Axis) -> list[Array]:
    try:
        return run(inputs)
    except Exception as error:
        reason = " ".join(str(error).split())[:400]
        hint = "" if axis is None else f" The axis '{axis[0]}' was declared dynamic and became static."
        raise ExportError(f"The exported model does not run {_at(axis)}.{hint} ({reason})") from error


def _at(axis: Axis) -> str:
    return "on the example inputs" if axis is None else f"with the axis '{axis[0]}' at size {axis[1]}"


def _not_finite(examples: Examples, axis: Axis) -> InputError:
    if axis is not None:
        return examples.beyond(axis, "returns NaN or Inf")
    return InputError(
        "The module itself returns NaN or Inf on the example inputs; pass an example with a finite answer."
    )


def _too_few(actual: Array, evaluation: ExponentialMethod) -> str:
    """A hint for NaN: a graph cannot raise an error where a fixed number of squarings does not suffice."""
    if not evaluation.is_fixed or np.isfinite(actual).all():
        return ""
    return f" It has a fixed number of squarings ({evaluation.squarings}): use more, or squarings='auto'."


def norms_by_layer(module: nn.Module, inputs: Sequence[Tensor]) -> dict[str, float]:
    """The largest ‖S‖₂ over batch and heads, by the innermost layer that calls orthogonal attention."""
    inside: list[str] = [""]
    found: dict[str, float] = {}

    def record(*arguments: Any) -> Tensor:
        q, k, _, scale, mask = arguments[:5]
        factor = torch.as_tensor(scale, dtype=torch.float64).expand(q.shape[:-2])
        norm = float(spectral_norm(masked(q, mask), masked(k, mask), factor).max())
        found[inside[-1]] = max(found.get(inside[-1], 0.0), norm)
        return attention._apply(*arguments)

    with contextlib.ExitStack() as hooks, intercept(record), torch.no_grad():
        for name, layer in [(name, layer) for name, layer in module.named_modules() if name]:
            before = layer.register_forward_pre_hook(lambda *_, name=name: inside.append(name))
            after = layer.register_forward_hook(lambda *_: inside.pop() and None)
            hooks.callback(before.remove)
            hooks.callback(after.remove)
        module(*inputs)
    return found


Array = NDArray[np.generic]
Run = Callable[[Sequence[Tensor]], list[Array]]


def eager_runner(module: nn.Module) -> Run:
    def run(inputs: Sequence[Tensor]) -> list[Array]:
        with torch.no_grad():
            outputs = module(*inputs)
        return [x.detach().cpu().numpy() for x in ([outputs] if isinstance(outputs, Tensor) else outputs)]

    return run


def artifact_runner(path: Path) -> Run:
    """The artifact in the runtime of its format; without ONNX Runtime, an ONNX file runs in onnx's own evaluator."""
    if path.suffix == ".onnx" and importlib.util.find_spec("onnxruntime") is None:
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(str(path))
        return lambda inputs: list(evaluator.run(None, _named(evaluator.input_names, inputs)))
    session = load(path, cache=False)
    names = [spec.name for spec in session.inputs]  # a file alone may have other names than its manifest
    return lambda inputs: list(session.run(_named(names, inputs)).values())


def _named(names: Sequence[str], inputs: Sequence[Tensor]) -> dict[str, Array]:
    """By position; a TorchScript file lists optional inputs too, which come last."""
    return {name: x.detach().cpu().numpy() for name, x in zip(names[: len(inputs)], inputs, strict=True)}
