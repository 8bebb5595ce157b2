"""The kernels of an execution provider: listed by ONNX Runtime itself, or in a table where that is impossible."""

from __future__ import annotations

import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from osa_runtime.errors import InputError
from osa_runtime.runtime.device import answer_of, ask, installed_wheels

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
OPEN_END = 2**31 - 1  # ONNX Runtime's notation for "until the operator changes"


@dataclass(frozen=True)
class Kernel:
    """An implementation of one operator, for the operator's versions first to last and for some types.

    ``types`` maps names of type parameters, such as T, or of inputs and outputs, to the types that are implemented.
    """

    domain: str
    operator: str
    first: int
    last: int
    types: Mapping[str, frozenset[str]]

    def serves(self, need: KernelNeed) -> bool:
        # As in ONNX Runtime: without a last version, a kernel is for exactly the version that it was written for.
        in_range = self.first == need.version or (self.first < need.version <= self.last != OPEN_END)
        return in_range and all(need.types.get(name, frozenset()) <= types for name, types in self.types.items())


@dataclass(frozen=True)
class KernelNeed:
    """The kernel that one node needs. ``version`` is the opset in which its operator last changed."""

    domain: str
    operator: str
    version: int
    types: Mapping[str, frozenset[str]]

    def in_float32(self) -> KernelNeed:
        types = {
            name: frozenset("tensor(float)" if t == "tensor(float16)" else t for t in used)
            for name, used in self.types.items()
        }
        return KernelNeed(self.domain, self.operator, self.version, types)


@dataclass(frozen=True)
class KernelList:
    """The kernels of one provider. Kernels that a partial list (``complete`` false) does not have are unknown."""

    provider: str
    source: str
    kernels: tuple[Kernel, ...] = field(repr=False)
    complete: bool = True
    newest_version: int = OPEN_END

    @cached_property
    def _by_operator(self) -> Mapping[tuple[str, str], list[Kernel]]:
        found: defaultdict[tuple[str, str], list[Kernel]] = defaultdict(list)
        for kernel in self.kernels:
            found[kernel.domain, kernel.operator].append(kernel)
        return found

    def serves(self, need: KernelNeed) -> bool | None:
        """True if there is a kernel, False if not, None if this list is not complete enough."""
        candidates = self._by_operator.get((need.domain, need.operator), [])
        if any(kernel.serves(need) for kernel in candidates):
            return True
        known = self.complete or (bool(candidates) and need.version <= self.newest_version)
        return False if known else None


def check_providers(names: Iterable[str]) -> None:
    for name in names:
        if name not in PROVIDERS:
            raise InputError(f"Unknown provider {name!r}; expected {' or '.join(PROVIDERS)}.")


def list_kernels(provider: str) -> KernelList:
    """The kernels of ``cpu`` or ``cuda``."""
    check_providers([provider])
    wheel = " ".join(f"{name} {version}" for name, version in installed_wheels().items())
    kernels = _ask(PROVIDERS[provider]) if wheel else ()
    if kernels:
        return KernelList(provider, f"as {wheel} lists them on this machine", kernels)
    if provider == "cuda":
        table = tuple(_kernels(CUDA_KERNELS))
        return KernelList(provider, PUBLISHED, table, complete=False, newest_version=NEWEST_OPSET)
    reason = f"{wheel} does not list its kernels" if wheel else "ONNX Runtime is not installed here"
    return KernelList(provider, f"unknown: {reason}", (), complete=False)


def _ask(name: str) -> tuple[Kernel, ...]:
    """The kernels that ONNX Runtime lists, empty if it cannot."""
    try:
        child = ask("kernels", name)
    except subprocess.TimeoutExpired:
        return ()
    found = answer_of(child) if child.returncode == 0 else ()
    return tuple(_kernels(found)) if isinstance(found, list) else ()


def _kernels(rows: Iterable[tuple[str, str, int, int, Mapping[str, Iterable[str]]]]) -> Iterable[Kernel]:
    for domain, operator, first, last, types in rows:
        yield Kernel(domain, operator, first, last, {name: frozenset(allowed) for name, allowed in types.items()})


PUBLISHED = (
    "from a table: CUDA does not load here. It follows the operator list published with "
    "ONNX Runtime's sources (docs/OperatorKernels.md) in 2026, for opsets 18 to 21"
)
NEWEST_OPSET = 21

_FLOATS = "float16 float double"
_WITH_BFLOAT = f"{_FLOATS} bfloat16"
_WHOLE = "int8 int16 int32 int64 uint8 uint16 uint32 uint64"
_WIDE = "int32 int64 uint32 uint64"
_NUMBERS = f"{_WITH_BFLOAT} {_WHOLE}"
_ALL = f"{_NUMBERS} bool"
_COMPARED = f"{_FLOATS} {_WIDE}"
_INDEX = "int32 int64"

# operator: first version, {type parameter: types}; several rows where they changed
_TABLE: dict[str, list[tuple[int, dict[str, str]]]] = {
    "Abs": [(13, {"T": _NUMBERS})],
    "Add": [(14, {"T": _NUMBERS})],
    "And": [(7, {"T": "bool"})],
    "Cast": [(version, {"T1": _ALL, "T2": _ALL}) for version in (13, 19, 21)],
    "Ceil": [(13, {"T": _FLOATS})],
    "Clip": [(13, {"T": f"{_FLOATS} int8 uint8 int64 uint64"})],
    "Concat": [(13, {"T": _ALL})],
    "ConstantOfShape": [(version, {"T2": _ALL}) for version in (9, 20, 21)],
    "Conv": [(11, {"T": _FLOATS})],
    "Div": [(14, {"T": _NUMBERS})],
    "Einsum": [(12, {"T": _FLOATS})],
    "Equal": [(version, {"T": f"{_COMPARED} bool"}) for version in (13, 19)],
    "Erf": [(13, {"T": _WITH_BFLOAT})],
    "Exp": [(13, {"T": _WITH_BFLOAT})],
    "Expand": [(13, {"T": _ALL})],
    "EyeLike": [(9, {"T1": "float double int32 int64 uint64", "T2": "float double int32 int64 uint64"})],
    "Flatten": [(version, {"T": _ALL}) for version in (13, 21)],
    "Floor": [(13, {"T": _FLOATS})],
    "Gather": [(13, {"T": _ALL, "Tind": _INDEX})],
    "Gelu": [(20, {"T": _WITH_BFLOAT})],
    "Gemm": [(13, {"T": _WITH_BFLOAT})],
    "Greater": [(13, {"T": _COMPARED})],
    "GreaterOrEqual": [(16, {"T": _COMPARED})],
    "Identity": [(version, {"V": _ALL}) for version in (16, 19, 21)],
    "If": [(version, {"B": "bool", "V": _ALL}) for version in (16, 19, 21)],
    "IsInf": [(10, {"T1": "float double"}), (20, {"T1": _WITH_BFLOAT})],
    "IsNaN": [(13, {"T1": _WITH_BFLOAT}), (20, {"T1": _WITH_BFLOAT})],
    "LayerNormalization": [(17, {"T": _WITH_BFLOAT, "U": "float"})],
    "LeakyRelu": [(16, {"T": _FLOATS})],
    "Less": [(13, {"T": _COMPARED})],
    "LessOrEqual": [(16, {"T": _COMPARED})],
    "Log": [(13, {"T": _FLOATS})],
    "LogSoftmax": [(13, {"T": _FLOATS})],
    "Loop": [(version, {"I": "int64", "B": "bool", "V": _ALL}) for version in (16, 19, 21)],
    "MatMul": [(13, {"T": _WITH_BFLOAT})],
    "Max": [(13, {"T": f"{_WITH_BFLOAT} {_WIDE}"})],
    "Min": [(13, {"T": f"{_WITH_BFLOAT} {_WIDE}"})],
    "Mod": [(13, {"T": f"{_WITH_BFLOAT} {_WIDE}"})],
    "Mul": [(14, {"T": _NUMBERS})],
    "Neg": [(13, {"T": f"{_WITH_BFLOAT} int8 int16 int32 int64"})],
    "Not": [(1, {"T": "bool"})],
    "Or": [(7, {"T": "bool"})],
    "Pow": [(15, {"T": f"{_WITH_BFLOAT} {_INDEX}", "T1": f"{_WITH_BFLOAT} {_INDEX}"})],
    "Range": [(11, {"T": "float double int16 int32 int64"})],
    "Reciprocal": [(13, {"T": _FLOATS})],
    "ReduceL1": [(18, {"T": f"{_FLOATS} int32"})],
    "ReduceL2": [(18, {"T": f"{_FLOATS} int32"})],
    "ReduceMax": [(version, {"T": f"{_FLOATS} {_INDEX} int8 uint8"}) for version in (18, 20)],
    "ReduceMean": [(18, {"T": f"{_FLOATS} int32"})],
    "ReduceMin": [(version, {"T": f"{_FLOATS} {_INDEX} int8 uint8"}) for version in (18, 20)],
    "ReduceProd": [(18, {"T": f"{_FLOATS} int32"})],
    "ReduceSum": [(13, {"T": f"{_WITH_BFLOAT} {_INDEX}"})],
    "ReduceSumSquare": [(18, {"T": _FLOATS})],
    "Relu": [(14, {"T": _WITH_BFLOAT})],
    "Reshape": [(version, {"T": _ALL}) for version in (14, 19, 21)],
    "Round": [(11, {"T": _FLOATS})],
    "ScatterND": [(18, {"T": _ALL})],
    "Shape": [(version, {"T": _ALL}) for version in (15, 19, 21)],
    "Sigmoid": [(13, {"T": _WITH_BFLOAT})],
    "Sign": [(13, {"T": _NUMBERS})],
    "Sin": [(7, {"T": _WITH_BFLOAT})],
    "Size": [(version, {"T": _ALL}) for version in (13, 19, 21)],
    "Slice": [(13, {"T": _ALL, "Tind": _INDEX})],
    "Softmax": [(13, {"T": _WITH_BFLOAT})],
    "Split": [(18, {"T": _ALL})],
    "Sqrt": [(13, {"T": _WITH_BFLOAT})],
    "Squeeze": [(version, {"T": _ALL}) for version in (13, 21)],
    "Sub": [(14, {"T": _NUMBERS})],
    "Sum": [(13, {"T": _WITH_BFLOAT})],
    "Tanh": [(13, {"T": _WITH_BFLOAT})],
    "Tile": [(13, {"T": f"{_WITH_BFLOAT} {_INDEX}"})],
    "Transpose": [(version, {"T": _ALL}) for version in (13, 21)],
    "Trilu": [(14, {"T": _ALL})],
    "Unsqueeze": [(version, {"T": _ALL}) for version in (13, 21)],
    "Where": [(16, {"B": "bool", "T": f"{_WITH_BFLOAT} {_INDEX} uint8"})],
    "Xor": [(7, {"T": "bool"})],
}


def _rows() -> Iterable[tuple[str, str, int, int, Mapping[str, Iterable[str]]]]:
    for operator, kernels in _TABLE.items():
        for first, types in kernels:
            yield "", operator, first, first, {n: [f"tensor({t})" for t in used.split()] for n, used in types.items()}


CUDA_KERNELS = tuple(_rows())
