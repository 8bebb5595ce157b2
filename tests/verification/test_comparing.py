"""Any two artifacts: agreement where there is one, and the part where it ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sabotage import broken_onnx, change_weight, insert, perturb, poison
from sabotages_onnx import LARGE, NAN_TO_ZERO, NEGATE, ROWS

from osa_runtime.errors import InputError
from osa_runtime.parity.certificate import Certificate
from osa_runtime.verification import VerifySettings, compare, verify

Deep = Callable[..., Path]
MLP = "stack.blocks.1.mlp"


def compared(first: Path, second: Path, **options: Any) -> Certificate:
    return compare(first, second, VerifySettings(bisect=Path("-"), **options)).certificate


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("vit", {"dtype": "fp16"}, {}),
        ("vit", {}, {"dtype": "fp16"}),
        ("vit", {"functions": "inline"}, {}),
        ("vit", {"format": "torchscript"}, {}),
        ("vit", {"format": "pt2"}, {}),
        ("encoder", {"static": True}, {}),
        ("encoder", {}, {"static": True}),
        ("vit", {"squarings": 6}, {}),
        ("vit", {}, {"squarings": 6}),
    ],
    ids=[
        *("fp16-fp32", "fp32-fp16", "inlined", "torchscript", "pt2", "static-dynamic", "dynamic-static"),
        *("squarings-loop", "loop-squarings"),
    ],
)
def test_exports_of_one_checkpoint_agree(name: str, first: dict[str, Any], second: dict[str, Any], deep: Deep) -> None:
    certificate = compared(deep(name, **first), deep(name, **second))
    assert certificate.passed, certificate.failures()
    assert certificate.kind == "compare"
    assert certificate.bisection is None
    assert {layer.party for layer in certificate.layers} == {"artifact", "reference"}
    assert any(case.norm for case in certificate.cases)


def test_different_interfaces_fail_before_anything_runs(deep: Deep) -> None:
    certificate = compared(deep("vit"), deep("encoder"))
    assert [check.name for check in certificate.checks if not check.passed] == ["interface"]
    assert certificate.cases == ()


@pytest.mark.parametrize(("change", "layer"), [(perturb, MLP), (poison, MLP)], ids=["weight", "nan"])
@pytest.mark.parametrize("turned", [False, True], ids=["as artifact", "as reference"])
def test_a_changed_layer_is_named(change: Any, layer: str, turned: bool, deep: Deep, tmp_path: Path) -> None:
    broken = broken_onnx(
        deep("vit"), tmp_path / "broken", lambda m: change_weight(m, f"{layer}.contract/MatMul.weight", change)
    )
    pair = (deep("vit"), broken) if turned else (broken, deep("vit"))
    certificate = compared(*pair)
    assert not certificate.passed
    assert certificate.bisection is not None
    assert (certificate.bisection.cumulative or "").startswith(layer)
    assert certificate.bisection.alone is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [(NAN_TO_ZERO, "broken"), (LARGE.replace("20.0", "4.5") + NEGATE, "scaled"), (ROWS + NEGATE, "random")],
    ids=["NaN made 0", "negated for large inputs", "negated for batches above 8"],
)
def test_what_only_some_inputs_show_is_found(text: str, kind: str, deep: Deep, tmp_path: Path) -> None:
    broken = broken_onnx(deep("vit"), tmp_path / "broken", lambda model: insert(model, "logits", text))
    certificate = compare(broken, deep("vit")).certificate
    assert kind in {case.kind.split()[0] for case in certificate.cases if case.verdict == "fail"}


def test_a_changed_file_is_told_by_its_hash(deep: Deep, tmp_path: Path) -> None:
    broken = broken_onnx(deep("vit"), tmp_path / "broken", lambda m: None)
    (broken / "model.onnx").write_bytes((deep("vit", functions="inline") / "model.onnx").read_bytes())
    assert [check.name for check in compared(broken, deep("vit")).checks if not check.passed] == ["files"]
    failed = [check.name for check in compared(deep("vit"), broken).checks if not check.passed]
    assert failed == ["files of the reference"]


def test_tolerances_of_the_user_are_used(deep: Deep) -> None:
    pair = deep("vit", format="torchscript"), deep("vit")
    strict = compared(*pair, rtol=0.0)
    assert not strict.passed
    assert strict.settings["rtol"] == 0.0
    # No digit is left at the largest scales, where logits of some 20 differ by as much: 10 was not enough everywhere.
    assert compared(*pair, rtol=0.0, atol=1000.0).passed


def test_inputs_of_another_run_are_taken(deep: Deep) -> None:
    run = verify(deep("encoder"))
    certificate = compared(deep("encoder", format="torchscript"), deep("encoder"), inputs=run.cases[:2])
    assert certificate.passed
    assert [case.name for case in certificate.cases] == [case.name for case in run.cases[:2]]


def test_inputs_that_the_reference_refuses_are_an_error(deep: Deep) -> None:
    run = verify(deep("encoder"))
    with pytest.raises(InputError, match="The reference fails on the case"):
        compared(deep("encoder"), deep("encoder", static=True), inputs=run.cases[:1])
