"""``osa compare``: exit codes, messages and files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from osa_runtime.cli.main import app
from osa_runtime.parity.certificate import read_certificate

Exported = Callable[[str, str], Path]
runner = CliRunner()
FEW = ("--batch", "2")


def osa(*arguments: str | Path, code: int = 0) -> str:
    result = runner.invoke(app, ["compare", *map(str, arguments)], env={"COLUMNS": "200"})
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    return result.output


def test_two_formats_of_one_model_agree(exported: Exported, tmp_path: Path) -> None:
    first, second = exported("vit", "torchscript"), exported("vit", "onnx")
    shown = osa(first, second, *FEW, "--report", tmp_path / "r.json", "--html", tmp_path / "r.html")
    assert "PASS" in shown
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "r.json"]
    assert read_certificate(tmp_path / "r.json").kind == "compare"


def test_another_model_fails_with_1(exported: Exported) -> None:
    content = json.loads(
        osa(exported("vit", "onnx"), exported("encoder", "onnx"), "--json", code=1),
        parse_constant=pytest.fail,
    )
    assert content["verdict"] == "fail"
    assert content["checks"][-1]["name"] == "interface"


def test_a_changed_one_fails_and_bisect_says_where(exported: Exported, tmp_path: Path) -> None:
    from sabotage import broken_onnx, change_weight, perturb

    good = exported("vit", "onnx")
    broken = broken_onnx(good, tmp_path / "broken", lambda m: change_weight(m, "head.weight", perturb))
    shown = osa(broken, good, *FEW, "--bisect", code=1)
    assert "first part behind which the signal is wrong: head" in shown
    assert not (tmp_path / "-").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch", "0"], "expected whole numbers of at least 1"),
        (["--tokens", "3"], "no dynamic axis"),
        (["--rtol", "inf"], "expected a finite number"),
        (["--report", "x.txt"], "ends in .json"),
        (["--load-inputs", "none.npz"], "cannot be read"),
        (["--certify"], "No such option"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_wrong_usage_leaves_with_2(arguments: list[str], message: str, exported: Exported) -> None:
    assert message in osa(exported("vit", "onnx"), exported("vit", "onnx"), *arguments, code=2)


def test_what_is_no_artifact_leaves_with_3(exported: Exported, tmp_path: Path) -> None:
    good = exported("vit", "onnx")
    assert "does not exist" in osa(good, tmp_path / "none", code=3)
    assert "does not exist" in osa(tmp_path / "none", good, code=3)
    assert "is an empty folder" in osa(good, tmp_path, code=3)


def test_one_artifact_in_another_runtime(exported: Exported) -> None:
    content = json.loads(osa(exported("vit", "onnx"), "--runtime", "reference", *FEW, "--quick", "--json"))
    assert content["verdict"] == "pass"
    assert content["subject"]["placement"]["provider"].startswith("onnx's ReferenceEvaluator")
    assert content["reference"]["placement"]["provider"] == "CPUExecutionProvider"


def test_one_artifact_alone_is_wrong_usage(exported: Exported) -> None:
    assert "a second artifact, or --runtime" in osa(exported("vit", "onnx"), code=2)
    assert "--runtime abacus: expected one of openvino" in osa(exported("vit", "onnx"), "--runtime", "abacus", code=2)
    shown = osa(exported("vit", "torchscript"), "--runtime", "tract", code=2)
    assert "--runtime tract runs ONNX models" in shown
