"""The kernels of ONNX Runtime's CUDA provider for the operators that exported models use, opsets 18 to 21.

ONNX Runtime lists the kernels of a provider only where its libraries load. Elsewhere this table answers; it follows
the list that ONNX Runtime publishes with its sources. An operator that is not here is unknown, not missing.

The list as it was before March 2026 lacks some of these: Equal and Size from opset 19 on, ReduceMax, ReduceMin and
ConstantOfShape from 20 on, If, Loop, Identity and Flatten at 21. At opset 18 it has them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

PUBLISHED = (
    "from a table, not asked: CUDA does not load here. It follows the operator list published with "
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
