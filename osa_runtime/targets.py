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
    """``options`` are those of ``export``. ``package`` writes ``file`` from the exported program, if it has one.

    ``lacks`` has the reason for each of functions, control_flow, float64, float16 and dynamic_axes that a model may not
    have; ``advice`` is for users of the runtime.
    """

    name: str
    runtime: str
    options: Mapping[str, Any] = field(default_factory=dict)
    tried: str = ""
    lacks: Mapping[str, str] = field(default_factory=dict)
    hides_nan: frozenset[str] = frozenset()  # operators that return a number for NaN there
    newest_opset: int = 23
    newest_ir: int = 10
    package: str | None = None
    file: str | None = None
    advice: str = ""

    @property
    def format(self) -> str:
        return str(self.options.get("format", "onnx"))

    def applied(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options of the target; ``given``, without those that are None, may add to them but not contradict."""
        asked = {name: value for name, value in given.items() if value is not None}
        for name in (name for name in self.fixed if asked.get(name, self.fixed[name]) != self.fixed[name]):
            raise InputError(
                f"{name}={asked[name]!r} contradicts target={self.name!r}, which needs {name}={self.fixed[name]!r}"
                f"{self._reason(name)}. Leave one of the two out."
            )
        return {**self.options, **asked}

    def _reason(self, option: str) -> str:
        need = {"functions": "functions", "core": "float64", "dtype": "float16"}.get(option, "")
        return f": {self.runtime} {self.lacks[need]}" if need in self.lacks else ""

    @property
    def fixed(self) -> dict[str, Any]:
        """The options that must be as they are: all but the number of squarings, where a number is needed."""
        dtype = {"dtype": "fp32"} if "float16" in self.lacks else {}
        return {"format": "onnx"} | dtype | {name: value for name, value in self.options.items() if name != "squarings"}

    def objections(self, needs: GraphNeeds) -> Iterator[str]:
        """The reasons for which a model does not run there, or does not answer right."""
        if needs.format != self.format:
            yield f"it is {needs.format}, and {self.runtime} is given {self.format}"
            return
        if needs.undefined:
            yield f"{_some(needs.undefined)} has no definition in the file: a tool in between has dropped the functions"
        found = {
            "functions": f"it has model-local functions ({_some(needs.functions)})",
            "control_flow": f"it has {' and '.join(needs.control_flow)}",
            "dynamic_axes": f"its axes {_some(needs.dynamic_axes)} are dynamic",
            "float64": f"it computes in float64, for instance in {_some(needs.float64)}",
            "float16": f"it has {_some(needs.float16)}",
        }
        for need in (need for need in found if need in self.lacks and getattr(needs, need)):
            yield f"{found[need]}, and {self.runtime} {self.lacks[need]}"
        if hiding := self.hides_nan.intersection(needs.may_hide_nan):
            yield (
                f"its {' and '.join(sorted(hiding))} would return a number for NaN there, and so hide that an "
                "attention is out of range"
            )
        if needs.opset is not None and needs.opset > self.newest_opset:
            yield f"it has opset {needs.opset}, and {self.newest_opset} is the newest that is known to be read there"
        if needs.ir_version is not None and needs.ir_version > self.newest_ir:
            yield f"it has IR version {needs.ir_version}, and {self.newest_ir} is the newest that is read there"


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
    float16: tuple[str, ...] = ()
    dynamic_axes: tuple[str, ...] = ()
    may_hide_nan: tuple[str, ...] = ()
    opset: int | None = None
    ir_version: int | None = None


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


STRAIGHT = {"functions": "inline", "squarings": SQUARINGS}
FLOAT32 = STRAIGHT | {"core": "float32"}
LARGEST = frozenset(("Clip", "Max", "Min", "ReduceMax", "ReduceMin", "MaxPool", "GlobalMaxPool"))
NARROWS = {"float64": "computes it as float32"}
LACKS_FUNCTIONS = {"functions": "does not expand them"}
FIXED_SIZES = {"dynamic_axes": "takes tensors of the sizes that a program was exported with"}

TARGETS = {
    target.name: target
    for target in (
        Target("ort", "ONNX Runtime", tried="1.17.3, 1.18.1, 1.20.1, 1.22.1, 1.25.1 and 1.31.1"),
        Target("ort-web", "ONNX Runtime Web (WASM)", tried="1.30.0 in Chromium 156"),
        Target(
            "webgpu",
            "ONNX Runtime Web (WebGPU)",
            FLOAT32,
            tried="1.30.0 in Chromium 156, on SwiftShader",
            lacks=LACKS_FUNCTIONS | {"control_flow": "has no Loop", "float64": "has none"},
        ),
        Target(
            "openvino",
            "OpenVINO",
            FLOAT32,
            tried="2026.4.1",
            lacks=LACKS_FUNCTIONS
            | NARROWS
            | {"control_flow": "returns uninitialised memory from Loop and If where sizes are dynamic"},
            hides_nan=LARGEST | {"Relu", "LeakyRelu", "Celu", "HardSigmoid", "Exp", "ReduceLogSumExp"},
            advice="compile it with EXECUTION_MODE_HINT=ACCURACY: otherwise OpenVINO computes products with 8-bit "
            "weights in 8 bits, and may choose bfloat16 for the rest",
        ),
        Target(
            "tract",
            "tract",
            STRAIGHT,
            tried="0.23.9",
            lacks=LACKS_FUNCTIONS
            | {"control_flow": "takes loops only with fixed sizes", "float16": "loads no Gemm in float16"},
            hides_nan=LARGEST | {"Relu", "Celu", "HardSigmoid", "Sigmoid", "Tanh"},
        ),
        Target(
            "iree",
            "IREE",
            FLOAT32,
            tried="3.13.0",
            lacks=LACKS_FUNCTIONS | NARROWS | {"control_flow": "does not compile it"},
            hides_nan=frozenset(("Clip", "Max", "Min")),
        ),
        Target(
            "tvm",
            "Apache TVM",
            STRAIGHT,
            tried="0.27.0",
            lacks=LACKS_FUNCTIONS | {"control_flow": "does not read it"},
            hides_nan=LARGEST | {"Relu", "Elu", "Selu", "HardSigmoid"},
        ),
        Target(
            "executorch",
            "ExecuTorch",
            {"format": "pt2", "squarings": SQUARINGS},
            tried="1.5.1",
            lacks=FIXED_SIZES | {"control_flow": "has none of these"},
            package="executorch",
            file="model.pte",
        ),
        Target(
            "litert",
            "LiteRT",
            {"format": "pt2", "squarings": SQUARINGS, "core": "float32"},
            tried="0.10.0",
            lacks=FIXED_SIZES | {"control_flow": "has none of these", "float64": "has none"},
            package="litert_torch",
            file="model.tflite",
        ),
        Target("aoti", "AOTInductor", {"format": "pt2"}, tried="torch 2.13", package="torch", file="compiled.pt2"),
        Target(
            "cuda-graph",
            "ONNX Runtime on CUDA",
            {"squarings": SQUARINGS},
            lacks={
                "control_flow": "cannot capture a branch or a loop",
                "dynamic_axes": "captures a graph for one size",
            },
        ),
    )
}


def target_named(name: str) -> Target:
    if name not in TARGETS:
        raise InputError(f"target={name!r}: expected one of {', '.join(TARGETS)}.")
    return TARGETS[name]


def allows_dynamic_axes(target: str | None) -> bool:
    return target is None or "dynamic_axes" not in target_named(target).lacks
