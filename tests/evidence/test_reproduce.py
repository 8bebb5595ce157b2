"""Every experiment at small sizes, its files, its continuation after a kill, and its failure when a claim fails."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from osa_runtime.cli.main import app
from osa_runtime.errors import DataError, InputError, StorageError
from osa_runtime.evidence import EXPERIMENTS, Claim, reproduce
from osa_runtime.evidence import propagation as propagation_module

pytestmark = pytest.mark.slow


def reproduced(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["reproduce", *map(str, arguments)])
    return done.exit_code, " ".join(done.output.split())


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if name != "fashion-mnist"])
def test_quick_run_leaves_a_report(name: str, tmp_path: Path, data_folder: Path) -> None:
    code, output = reproduced(name, "--quick", "--out", tmp_path / "out", "--data-dir", data_folder)
    assert code == 0, output
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    report = (tmp_path / "out" / "report.md").read_text()
    assert results["quick"] is True
    assert "quick run at small sizes" in report
    assert {claim["result"] for claim in results["claims"]} <= {"holds", "not judged"}
    assert all(claim["bound"] for claim in results["claims"])
    pictures = [path.stem for path in (tmp_path / "out").glob("*.svg")]
    assert pictures
    assert all((tmp_path / "out" / f"{picture}.png").read_bytes().startswith(b"\x89PNG") for picture in pictures)
    assert all(f"({picture}.svg)" in report for picture in pictures)
    assert str(tmp_path) not in report + json.dumps(results)


def test_finished_runs_are_not_run_again(tmp_path: Path) -> None:
    told: list[str] = []

    def stop_at_third(name: str) -> None:
        told.append(name)
        if len(told) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce("propagation", tmp_path, quick=True, tell=stop_at_third)
    assert not (tmp_path / "report.md").exists()
    again: list[str] = []
    reproduce("propagation", tmp_path, quick=True, tell=again.append)
    assert again == [told[2], "polynomial"]
    first = (tmp_path / "report.md").read_text()
    reproduce("propagation", tmp_path, quick=True, tell=again.append)
    assert len(again) == 2
    assert (tmp_path / "report.md").read_text() == first


def test_a_failed_claim_is_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    impossible = (Claim("Too much", "osa_residual", at_least=2.0),)
    monkeypatch.setattr(propagation_module, "claims", lambda _: impossible)
    code, output = reproduced("propagation", "--quick", "--out", tmp_path)
    assert code == 1
    assert "fails Too much" in output
    assert "**fails**" in (tmp_path / "report.md").read_text()


@pytest.mark.parametrize("value", [None, math.nan, math.inf, 0.5, 3.1], ids=str)
def test_a_number_that_is_missing_or_out_of_bounds_fails(value: float | None) -> None:
    claim = Claim("c", "x", at_least=1.0, at_most=3.0)
    measured = {} if value is None else {"x": value}
    assert claim.judge(measured, quick=False).failed
    assert not claim.judge({"x": 1.0}, quick=False).failed
    assert claim.bound == "≥ 1 and ≤ 3"


def test_a_claim_about_large_sizes_is_not_judged_in_a_quick_run() -> None:
    claim = Claim("c", "x", at_least=1.0, in_quick=False)
    assert claim.judge({"x": 0.0}, quick=True).result == "not judged"
    assert claim.judge({"x": 0.0}, quick=False).failed


def test_other_folders_are_refused(tmp_path: Path) -> None:
    reproduce("propagation", tmp_path / "out", quick=True)
    with pytest.raises(InputError, match="holds a quick run of propagation, not a quick run of jacobian"):
        reproduce("jacobian", tmp_path / "out", quick=True)
    with pytest.raises(InputError, match="not a whole run of propagation"):
        reproduce("propagation", tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    with pytest.raises(InputError, match="holds other files"):
        reproduce("propagation", tmp_path / "mine", quick=True)
    run = tmp_path / "out" / "runs" / "osa.json"
    run.write_text(run.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(InputError, match=r"osa\.json is from a run with other settings"):
        reproduce("propagation", tmp_path / "out", quick=True)
    run.write_text("{")
    with pytest.raises(StorageError, match=r"Cannot read .*osa\.json"):
        reproduce("propagation", tmp_path / "out", quick=True)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        pytest.param(["mnits", "--out", "x"], 2, "did you mean mnist?", id="misspelt"),
        pytest.param(["mnist"], 2, "--out FOLDER", id="no folder"),
        pytest.param(
            ["mnist", "--quick", "--out", "x", "--data-dir", "absent"], 3, "osa data fetch mnist", id="no data"
        ),
        pytest.param(["propagation", "--out", "file/x"], 3, "Cannot write", id="no place"),
    ],
)
def test_wrong_usage_is_one_message(
    arguments: list[str], code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    found, output = reproduced(*arguments)
    assert (found, message in output) == (code, True), output
    assert "Traceback" not in output


def test_the_list_describes_every_experiment_and_its_time() -> None:
    code, output = reproduced("list")
    assert code == 0
    assert all(f"{known.name} {known.time}" in output for known in EXPERIMENTS.values())


def test_missing_data_is_an_error_of_the_library(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="osa data fetch mnist"):
        reproduce("mnist", tmp_path / "out", quick=True, data_folder=tmp_path)
