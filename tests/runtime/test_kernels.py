"""The kernels of a provider: ONNX Runtime's own answer, its rules for versions and types, and the CUDA table."""

from __future__ import annotations

import subprocess
from typing import Any

import onnx
import pytest

from osa_runtime.errors import InputError
from osa_runtime.runtime import kernels
from osa_runtime.runtime.kernels import CUDA_KERNELS, OPEN_END, Kernel, KernelNeed, list_kernels

FLOAT, HALF = frozenset({"tensor(float)"}), frozenset({"tensor(float16)"})


def need(operator: str, version: int, types: frozenset[str] = FLOAT) -> KernelNeed:
    return KernelNeed("", operator, version, {"T": types})


def test_onnx_runtime_answers_for_the_cpu() -> None:
    cpu = list_kernels("cpu")
    assert cpu.complete
    assert cpu.source.startswith("as onnxruntime")
    assert cpu.serves(need("MatMul", 13)) is True
    assert cpu.serves(need("MatMul", 13, HALF)) is False
    assert cpu.serves(need("MatMul", 13, HALF).in_float32()) is True
    assert cpu.serves(need("CastLike", 15)) is False


@pytest.mark.parametrize(
    ("first", "last", "version", "served"),
    [(13, OPEN_END, 13, True), (13, OPEN_END, 14, False), (13, 18, 16, True), (13, 18, 19, False), (13, 18, 12, False)],
)
def test_versions_count_as_in_onnx_runtime(first: int, last: int, version: int, served: bool) -> None:
    assert Kernel("", "Op", first, last, {"T": FLOAT}).serves(need("Op", version)) is served


def test_types_must_all_be_implemented() -> None:
    kernel = Kernel("", "Op", 1, OPEN_END, {"T": FLOAT, "axes": frozenset({"tensor(int64)"})})
    assert kernel.serves(need("Op", 1))
    assert not kernel.serves(need("Op", 1, FLOAT | HALF))
    assert not kernel.serves(KernelNeed("", "Op", 1, {"T": FLOAT, "axes": frozenset({"tensor(int32)"})}))


def test_the_table_answers_for_cuda_where_it_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_ask", lambda name: ())
    cuda = list_kernels("cuda")
    assert "from a table" in cuda.source
    assert cuda.serves(need("MatMul", 13, HALF)) is True
    assert cuda.serves(need("EyeLike", 9, HALF)) is True  # its type parameters are T1 and T2, so T says nothing
    assert cuda.serves(need("Where", 16, frozenset({"tensor(bool)"}))) is False
    assert cuda.serves(need("Unique", 11)) is None  # not in the table
    assert cuda.serves(need("Round", 22)) is None  # newer than the table


def test_the_table_covers_every_version_between_opsets_18_and_21() -> None:
    rows = {(operator, first) for _, operator, first, _, _ in CUDA_KERNELS}
    for operator in {operator for operator, _ in rows}:
        for opset in range(18, 22):
            if onnx.defs.has(operator, opset):
                assert (operator, onnx.defs.get_schema(operator, opset).since_version) in rows


def test_the_table_names_the_type_parameters_of_the_operators() -> None:
    for _, operator, first, _, types in CUDA_KERNELS:
        schema = onnx.defs.get_schema(operator, first)
        allowed = {
            constraint.type_param_str: set(constraint.allowed_type_strs) for constraint in schema.type_constraints
        }
        for name, used in types.items():
            assert set(used) <= allowed[name] | {"tensor(bfloat16)"}, operator


@pytest.mark.parametrize("outcome", ["crash", "timeout"])
def test_a_runtime_that_cannot_answer_is_unknown(monkeypatch: pytest.MonkeyPatch, outcome: str) -> None:
    def run(*args: Any, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        if outcome == "timeout":
            raise subprocess.TimeoutExpired("probe", 1)
        return subprocess.CompletedProcess([], -11, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    cpu = list_kernels("cpu")
    assert cpu.source.startswith("unknown: ")
    assert cpu.serves(need("MatMul", 13)) is None


def test_without_onnx_runtime_the_cpu_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "installed_wheels", dict)
    assert "not installed" in list_kernels("cpu").source


def test_unknown_provider() -> None:
    with pytest.raises(InputError, match="'tpu'; expected cpu or cuda"):
        list_kernels("tpu")
