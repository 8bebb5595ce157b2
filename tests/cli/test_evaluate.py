"""``osa evaluate``: exit codes, figures and messages."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from osa_runtime import load
from osa_runtime.cli.main import app
from osa_runtime.parity.certificate import read_certificate
from small_models import feeds

Exported = Callable[[str, str], Path]
runner = CliRunner()


def osa(*arguments: str | Path, code: int = 0) -> str:
    result = runner.invoke(app, [*map(str, arguments)], env={"COLUMNS": "200"})
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    return result.output


@pytest.fixture
def vit(exported: Exported) -> Path:
    return exported("vit", "onnx")


@pytest.fixture
def data(vit: Path, tmp_path: Path) -> Path:
    """Of 40 samples the model has 30 right."""
    images = feeds("vit", 40)
    answers = load(vit).run(images)["logits"].argmax(1)
    answers[::4] = (answers[::4] + 1) % 10
    np.savez(tmp_path / "data.npz", **images, y=answers)
    return tmp_path / "data.npz"


def other(vit: Path, home: Path) -> Path:
    """Its head gives the classes in another order."""
    import onnx
    from onnx import numpy_helper
    from sabotage import broken_onnx

    def turn(model: onnx.ModelProto) -> None:
        for tensor in model.graph.initializer:
            if tensor.name.startswith("head"):
                tensor.CopyFrom(numpy_helper.from_array(np.roll(numpy_helper.to_array(tensor), 1, 0), tensor.name))

    return broken_onnx(vit, home / "other", turn)


def test_what_is_shown(vit: Path, data: Path) -> None:
    shown = osa("evaluate", vit, "--data", data, "--against", vit.parent / "vit")
    assert "40 samples of data.npz" in shown
    assert shown.count("75.00 % right (30); 95 % interval 59.81 to 85.81 %") == 2
    assert "the two return the same answer for every sample" in shown


def test_figures_as_json_and_in_a_file(vit: Path, data: Path, tmp_path: Path) -> None:
    printed = osa("evaluate", vit, "--data", data, "--json", "--out", tmp_path / "deep" / "f.json")
    content = json.loads(printed, parse_constant=pytest.fail)
    assert content == json.loads((tmp_path / "deep" / "f.json").read_text())
    assert (content["samples"], content["model"]["accuracy"], content["failure"]) == (40, 0.75, None)
    assert sum(entry["correct"] for entry in content["model"]["classes"]) == 30


def test_a_drop_beyond_the_limit_exits_with_1(vit: Path, data: Path, tmp_path: Path) -> None:
    wrong = other(vit, tmp_path)
    shown = osa("evaluate", wrong, "--data", data, "--against", vit, "--max-drop", "0.5", code=1)
    assert "not chance" in shown
    assert "FAIL: the accuracy drops by" in shown
    assert re.search(r"McNemar's p = \d", shown)
    osa("evaluate", wrong, "--data", data, "--against", vit)
    osa("evaluate", wrong, "--data", data, "--against", vit, "--max-drop", "100")
    osa("evaluate", vit, "--data", data, "--against", wrong, "--max-drop", "0")
    content = json.loads(osa("evaluate", wrong, "--data", data, "--against", vit, "--max-drop", "1", "--json", code=1))
    assert content["comparison"]["drop_points"] > 1
    assert "more than 1" in content["failure"]


USAGE = {
    "no data": ([], "Missing option '--data'", 2),
    "no reference": (["--max-drop", "0.5"], "--against", 2),
    "negative drop": (["--max-drop=-1", "--against", "x"], "--max-drop", 2),
    "infinite drop": (["--max-drop", "inf", "--against", "x"], "expected a finite number", 2),
    "no rows": (["--batch-size", "0"], "--batch-size", 2),
    "no samples": (["--limit", "0"], "--limit", 2),
    "no json": (["--out", "f.txt"], "--out is f.txt, expected a name that ends in .json", 2),
    "unwritable": (["--out", "data.npz/f.json"], "Cannot write data.npz/f.json", 3),
    "no other": (["--against", "none"], "none does not exist", 3),
    "device": (["--device", "tpu"], "tpu", 2),
}


@pytest.mark.parametrize(("arguments", "message", "code"), USAGE.values(), ids=USAGE)
def test_wrong_usage(
    arguments: list[str], message: str, code: int, vit: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data.parent)
    given = [] if not arguments else ["--data", "data.npz"]
    assert message in osa("evaluate", vit, *given, *arguments, code=code)


def test_the_accuracy_goes_into_the_certificate(vit: Path, data: Path, tmp_path: Path) -> None:
    artifact = shutil.copytree(vit, tmp_path / "vit")
    page = tmp_path / "r.html"
    few = ("--batch", "2", "--certify", "--html", page)
    shown = osa("verify", artifact, "--against", vit.parent / "vit", "--evaluate", data, *few)
    assert "✓ accuracy: 40 samples of data.npz: 75.00 % right" in shown
    found = read_certificate(artifact / "certificate.json").evaluation
    assert found is not None
    assert (found.accuracy.correct, found.against and found.against.correct, found.differ) == (30, 30, 0)
    assert "75.00 %" in page.read_text()
    assert "--evaluate data.npz" in page.read_text()


def test_data_that_cannot_be_read_is_known_before_the_work(vit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osa_runtime.verification.verify", lambda *_: pytest.fail("it was verified"))
    assert "did you mean digits" in osa("verify", vit, "--evaluate", "digit", code=3)
