"""The runtimes that a model is exported for, and what each of them takes: one table for export and inspection.

``tried`` names the versions that answered right in the tests or in `make test-runtimes` (docs/runtimes.md); where it
is empty, nothing was tried here and the row is what the runtime's own documentation promises.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from osa_runtime.errors import InputError

SQUARINGS = 4  # for ‖S‖ of up to 13; trained models have 1 to 3


@dataclass(frozen=True)
class Target:
    """``options`` are those of ``export``. ``package`` writes ``file`` from the exported program, if it has one."""

    name: str
    runtime: str
    why: str
    options: Mapping[str, Any] = field(default_factory=dict)
    tried: str = ""
    functions: bool = True
    control_flow: bool = True
    float64: bool = True
    dynamic_axes: bool = True
    hides_nan: frozenset[str] = frozenset()  # operators that return a number for NaN there
    newest_opset: int = 23
    newest_ir: int = 10
    package: str | None = None
    file: str | None = None

    @property
    def format(self) -> str:
        return str(self.options.get("format", "onnx"))

    def applied(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options of the target; ``given``, without those that are None, may add to them but not contradict."""
        asked = {name: value for name, value in given.items() if value is not None}
        for name in (name for name in self.fixed if asked.get(name, self.fixed[name]) != self.fixed[name]):
            raise InputError(
                f"{name}={asked[name]!r} contradicts target={self.name!r}, which needs {name}={self.fixed[name]!r}: "
                f"{self.why}. Leave one of the two out."
            )
        return {**self.options, **asked}

    @property
    def fixed(self) -> dict[str, Any]:
        """The options that must be as they are: all but the number of squarings, where a number is needed."""
        return {"format": "onnx", **{name: value for name, value in self.options.items() if name != "squarings"}}

    def objections(self, facts: GraphNeeds) -> Iterator[str]:
        """The reasons for which a model does not run there, or does not answer right."""
        if facts.format != self.format:
            yield f"it is {facts.format}, and {self.runtime} is given {self.format}"
            return
        if facts.functions and not self.functions:
            yield f"it has model-local functions ({_some(facts.functions)}), which {self.runtime} does not expand"
        if facts.undefined:
            yield f"{_some(facts.undefined)} has no definition in the file: a tool in between has dropped the functions"
        if facts.control_flow and not self.control_flow:
            yield f"it has {' and '.join(facts.control_flow)}: {self.why}"
        if facts.dynamic_axes and not self.dynamic_axes:
            yield f"its axes {_some(facts.dynamic_axes)} are dynamic: {self.why}"
        if facts.float64 and not self.float64:
            yield f"it computes in float64, for instance in {_some(facts.float64)}: {self.why}"
        if hiding := self.hides_nan.intersection(facts.may_hide_nan):
            yield (
                f"its {' and '.join(sorted(hiding))} would return a number for NaN there, and so hide that an "
                f"attention is out of range: export it with target={self.name!r}, which adds a guard"
            )
        if facts.opset is not None and facts.opset > self.newest_opset:
            yield f"it has opset {facts.opset}, and {self.newest_opset} is the newest that is known to be read there"
        if facts.ir_version is not None and facts.ir_version > self.newest_ir:
            yield f"it has IR version {facts.ir_version}, and {self.newest_ir} is the newest that is read there"


@dataclass(frozen=True)
class GraphNeeds:
    """The properties of a model that decide whether a runtime takes it.

    ``undefined`` are operators that nothing defines, ``may_hide_nan`` those without the guard that some runtimes need.
    """

    format: str
    functions: tuple[str, ...] = ()
    undefined: tuple[str, ...] = ()
    control_flow: tuple[str, ...] = ()
    float64: tuple[str, ...] = ()
    dynamic_axes: tuple[str, ...] = ()
    may_hide_nan: tuple[str, ...] = ()
    opset: int | None = None
    ir_version: int | None = None


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


STRAIGHT = {"functions": "inline", "squarings": SQUARINGS}
FLOAT32 = STRAIGHT | {"core": "float32"}
FLAT: dict[str, Any] = {"functions": False, "control_flow": False}
LARGEST = frozenset(("Clip", "Max", "Min", "ReduceMax", "ReduceMin", "MaxPool", "GlobalMaxPool"))

TARGETS = {
    target.name: target
    for target in (
        Target(
            "ort",
            "ONNX Runtime",
            "it runs functions, loops and float64 as they are",
            tried="1.18.1, 1.20.1, 1.22.1, 1.25.1 and 1.31.1",
        ),
        Target(
            "ort-web",
            "ONNX Runtime Web (WASM)",
            "it runs what ONNX Runtime runs",
            tried="1.30.0 in Chromium 150",
        ),
        Target(
            "webgpu",
            "ONNX Runtime Web (WebGPU)",
            "it has neither float64 nor Loop",
            FLOAT32,
            tried="1.30.0 in Chromium 150, on SwiftShader",
            **FLAT,
            float64=False,
        ),
        Target(
            "openvino",
            "OpenVINO",
            "it returns uninitialised memory from Loop and If with dynamic sizes, and computes float64 as float32",
            FLOAT32,
            tried="2026.4.1",
            **FLAT,
            float64=False,
            hides_nan=LARGEST | {"Relu", "LeakyRelu", "Celu", "HardSigmoid", "Exp", "ReduceLogSumExp"},
        ),
        Target(
            "tract",
            "tract",
            "it has no functions, and loops only with fixed sizes",
            STRAIGHT,
            tried="0.23.9",
            **FLAT,
            hides_nan=LARGEST | {"Relu", "Celu", "HardSigmoid", "Sigmoid", "Tanh"},
        ),
        Target(
            "iree",
            "IREE",
            "it computes float64 as float32",
            FLOAT32,
            tried="3.13.0",
            **FLAT,
            float64=False,
            hides_nan=frozenset(("Clip", "Max", "Min")),
        ),
        Target(
            "tvm",
            "Apache TVM",
            "its ONNX reader has neither functions nor Loop",
            STRAIGHT,
            tried="0.27.0",
            **FLAT,
            hides_nan=LARGEST | {"Relu", "Elu", "Selu", "HardSigmoid"},
        ),
        Target(
            "executorch",
            "ExecuTorch",
            "its programs have no while_loop, and tensors of the sizes that they were exported with",
            {"format": "pt2", "squarings": SQUARINGS},
            tried="1.5.1",
            control_flow=False,
            dynamic_axes=False,
            package="executorch",
            file="model.pte",
        ),
        Target(
            "litert",
            "LiteRT",
            "its converter has neither while_loop nor float64, and takes tensors of one size",
            {"format": "pt2", "squarings": SQUARINGS, "core": "float32"},
            tried="0.10.0",
            control_flow=False,
            float64=False,
            dynamic_axes=False,
            package="litert_torch",
            file="model.tflite",
        ),
        Target(
            "aoti",
            "AOTInductor",
            "it compiles an exported program, with its loops",
            {"format": "pt2"},
            tried="torch 2.13",
            package="torch",
            file="compiled.pt2",
        ),
        Target(
            "cuda-graph",
            "ONNX Runtime on CUDA, captured as a CUDA graph",
            "a CUDA graph holds neither a Loop nor an If, and is captured for one size",
            {"squarings": SQUARINGS},
            control_flow=False,
            dynamic_axes=False,
        ),
    )
}


def target_named(name: str) -> Target:
    if name not in TARGETS:
        raise InputError(f"target={name!r}: expected one of {', '.join(TARGETS)}.")
    return TARGETS[name]


def allows_dynamic_axes(target: str | None) -> bool:
    return target is None or target_named(target).dynamic_axes
