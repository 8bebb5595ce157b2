"""``osa bench``: what it shows, what it writes, and how it fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from osa_runtime.cli.main import app
from small_models import feeds

Exported = Callable[[str, str], Path]
QUICK = ("--seconds", "0", "--iterations", "2", "--warm-up", "0", "--threads", "1", "--no-memory")
runner = CliRunner()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.savez("all.npz", **feeds("encoder"))
    np.save("double.npy", np.zeros((1, 1, 8, 8)))
    return tmp_path


def osa_bench(*arguments: str | Path, code: int = 0) -> str:
    result = runner.invoke(app, ["bench", *map(str, arguments), *QUICK])
    assert result.exit_code == code, result.output
    return result.output


def test_the_table_has_every_size_and_says_where_it_ran(exported: Exported) -> None:
    folder = exported("encoder", "onnx")
    shown = osa_bench(folder, "--against", folder.parent / "encoder", "--batch", "1,3", "--tokens", "7,64")
    lines = [line for line in shown.splitlines() if line.startswith(" ") and " artifact " in line]
    rows = [line.split() for line in lines]
    assert [row[:3] for row in rows] == [[b, t, "artifact"] for t in ("7", "64") for b in ("1", "3")]
    assert shown.count(" eager ") >= 4
    assert "CPUExecutionProvider on cpu, 1 thread\n" in shown
    assert "fed: seeded random data (tokens: ids 0 to 10, mask: all true)" in shown
    assert "too noisy to trust" in shown, "two calls are too few"
    assert "MiB on disk" in shown
    assert "…" not in "".join(lines), "a column is cut off"


def test_json_plot_and_trace_are_written(exported: Exported, here: Path) -> None:
    pytest.importorskip("matplotlib")
    files = ("--json", "out.json", "--plot", "out.png", "--profile", "trace.json")
    shown = osa_bench(exported("vit", "onnx"), *files)
    assert "The trace is in trace.json" in shown
    assert "MatMul" in shown
    report = json.loads(Path("out.json").read_text(encoding="utf-8"))
    assert report["settings"]["iterations"] == 2
    assert len(report["artifact"]["sha256"]) == 64
    assert {"cpu", "cores", "versions"} <= set(report["machine"])
    assert {"python", "numpy"} <= set(report["machine"]["versions"])
    assert [c["batch"] for c in report["configurations"]] == [1, 8]
    assert report["profile"]["operators"][0]["share"] > 0
    assert isinstance(json.loads(Path("trace.json").read_text()), list)
    assert Path("out.png").stat().st_size > 1000
    assert {p.name for p in here.iterdir()} == {"all.npz", "double.npy", "out.json", "out.png", "trace.json"}


def test_json_can_be_printed(exported: Exported) -> None:
    report = json.loads(osa_bench(exported("vit", "torchscript"), "--json", "-", "--batch", "2"))
    assert report["against"] is None
    assert report["configurations"][0]["inputs"] == {"images": [2, 1, 8, 8]}


def test_real_data_is_repeated(exported: Exported) -> None:
    report = json.loads(osa_bench(exported("encoder", "onnx"), "--input", "all.npz", "--batch", "7", "--json", "-"))
    assert report["configurations"][0]["inputs"] == {"tokens": [7, 5], "mask": [7, 5]}
    assert report["fed"].startswith("the given data")


def test_another_checkpoint_is_a_failed_check(exported: Exported, tmp_path: Path) -> None:
    import torch

    from osa_runtime.models import load_checkpoint, save_checkpoint

    folder = exported("vit", "onnx")
    model = load_checkpoint(folder.parent / "vit")
    with torch.no_grad():
        model.head.weight[0] += 1
    save_checkpoint(model, tmp_path / "other")
    shown = osa_bench(folder, "--against", "other", "--json", "out.json", code=1)
    assert "The speed of a wrong answer is not reported." in shown
    assert "p50" not in shown
    assert not Path("out.json").exists()


WRONG: dict[str, tuple[str, list[str], int, str]] = {
    "no artifact": ("none", [], 3, "does not exist"),
    "tokens": ("encoder", ["--tokens", "16,65"], 2, "--tokens 65, but the model's axis tokens takes 1 to 64"),
    "no tokens": ("vit", ["--tokens", "16"], 2, "--tokens 16, but no axis"),
    "batch": ("vit", ["--batch", "0"], 2, "--batch 0: expected whole numbers"),
    "plot": ("vit", ["--plot", "out.pdf"], 2, "expected a name that ends in .png or .svg"),
    "json": ("vit", ["--json", "out.txt"], 2, "expected a name that ends in .json"),
    "profile name": ("vit", ["--profile", "out"], 2, "--profile is out, expected a name that ends in .json"),
    "same name": ("vit", ["--profile", "a.json", "--json", "a.json"], 2, "both name a.json"),
    "device": ("vit", ["--device", "tpu"], 2, "Unknown device 'tpu'"),
    "type of data": ("vit", ["--input", "double.npy"], 2, "images.astype('float32')"),
    "no data": ("vit", ["--input", "none.npy"], 2, "There is no file none.npy"),
    "checkpoint": ("vit", ["--against", "none"], 3, "does not exist; a checkpoint is a folder"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said(exported: Exported, here: Path, case: str) -> None:
    model, arguments, code, message = WRONG[case]
    artifact = here / "none" if model == "none" else exported(model, "onnx")
    assert message in osa_bench(artifact, *arguments, code=code)
    assert {p.name for p in here.iterdir()} == {"all.npz", "double.npy"}


@pytest.mark.parametrize("kind", ["torchscript", "pt2"])
def test_torch_formats_have_no_profile(exported: Exported, kind: str) -> None:
    assert f"is {kind}" in osa_bench(exported("vit", kind), "--profile", "trace.json", code=2)
