"""``osa package triton``: what it says, what it refuses, and with which exit code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from osa_runtime.cli.main import app

Exported = Callable[[str, str], Path]


def osa_package(*arguments: str | Path, code: int) -> str:
    result = CliRunner().invoke(app, ["package", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def test_the_models_and_what_to_do_next_are_shown(exported: Exported, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    shown = osa_package("triton", exported("vit", "onnx"), exported("encoder", "onnx"), "--out", repo, code=0)
    assert shown.splitlines() == [
        "vit-onnx (version 1): onnxruntime backend, batches of up to 32",
        "encoder-onnx (version 1): onnxruntime backend, batches of up to 32",
        f"Serve it with: tritonserver --model-repository={repo}",
    ]


def test_every_flag_is_passed_on(exported: Exported, tmp_path: Path) -> None:
    flags = ["--backend", "python", "--name", "digits", "--version-number", "4", "--max-batch", "16"]
    flags += ["--max-delay-us", "300", "--preferred-batch", "8", "--preferred-batch", "16", "--instances", "2"]
    flags += ["--threads", "3", "--device", "cuda", "--no-warm-up"]
    (tmp_path / "repo").mkdir()
    osa_package("triton", exported("vit", "onnx"), "--out", tmp_path / "repo", "--force", *flags, code=0)
    config = (tmp_path / "repo" / "digits" / "config.pbtxt").read_text()
    for line in (
        'backend: "python"',
        "max_batch_size: 16",
        "max_queue_delay_microseconds: 300",
        "preferred_batch_size: [ 8, 16 ]",
        "count: 2",
        "kind: KIND_GPU",
        'string_value: "3"',
    ):
        assert line in config
    assert "model_warmup" not in config
    assert (tmp_path / "repo" / "digits" / "4" / "model.py").is_file()


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--name", "a/b"], 2, "cannot be the name of a model in Triton"),
        (["--backend", "tensorrt"], 2, "tensorrt"),
        (["--max-batch", "0"], 2, "max-batch"),
        (["--preferred-batch", "64"], 2, "--preferred-batch 64: expected"),
        (["--version-number", "0"], 2, "version-number"),
        (["--device", "cuda:1"], 2, "cuda:1"),
        (["--out", "."], 3, "exists already"),
        (["--out", ".", "--force"], 3, "will not be replaced"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_flags_are_said(
    exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], code: int, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.txt").write_text("mine")
    assert message in osa_package("triton", exported("vit", "onnx"), "--out", "repo", *flags, code=code)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_other_formats_are_refused(exported: Exported, tmp_path: Path) -> None:
    shown = osa_package("triton", exported("vit", "torchscript"), "--out", tmp_path / "repo", code=3)
    assert "osa export --format onnx" in shown
    assert "Traceback" not in shown
    assert list(tmp_path.iterdir()) == []


def test_help_explains_itself() -> None:
    assert "triton" in CliRunner().invoke(app, ["package", "--help"]).output
    assert osa_package("triton", code=2)
