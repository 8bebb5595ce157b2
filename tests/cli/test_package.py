"""``osa package triton`` and ``web``: what they say, what they refuse, and with which exit code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import made_once
from osa_runtime.cli.main import app
from osa_runtime.packaging import web_page

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
        "preferred_batch_size: 8",
        "preferred_batch_size: 16",
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


@pytest.fixture
def page_model(tmp_path: Path) -> Path:
    from osa_runtime.models import SkiplessViT, ViTConfig, save_checkpoint
    from osa_runtime.pixels import Standardisation

    vit = SkiplessViT(ViTConfig(classes=10, dim=16, depth=1, heads=2, form="dense"))
    checkpoint = save_checkpoint(vit, tmp_path / "vit", standardisation=Standardisation((4.0,), (6.0,), (0.0, 16.0)))
    return made_once.export_checkpoint(checkpoint, tmp_path / "vit-onnx").folder


@pytest.mark.slow
def test_a_page_says_what_it_is_and_how_to_serve_it(
    page_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in web_page.SHA256:
        (tmp_path / name).write_bytes(b"")
        monkeypatch.setitem(web_page.SHA256, name, hashlib.sha256(b"").hexdigest())
    out = tmp_path / "the page"
    flags = ["--samples", "digits", "--title", "Read it", "--runtime-folder", tmp_path]
    shown = osa_package("web", page_model, "--out", out, *flags, code=0).splitlines()
    assert shown[0] == "Read it: 1 attention layers shown, 0 MB"
    assert shown[1].startswith("It runs in WASM, not on WebGPU: it has model-local functions")
    assert shown[-2:] == ["For both: osa export --target webgpu", f"Serve it with: python -m http.server -d '{out}'"]
    told = json.loads((out / "model.json").read_text())
    assert sorted({sample["label"] for sample in told["samples"]}) == list(range(10))
    assert told["placement"] == {"width": 0.75, "height": 1.0, "stretch": True, "by_mass": False}
    assert "exists already" in osa_package("web", page_model, "--out", out, *flags, code=3)
    assert osa_package("web", page_model, "--out", out, *flags, "--force", code=0)
    (tmp_path / next(iter(web_page.SHA256))).unlink()
    assert "onnxruntime-web@" in osa_package("web", page_model, "--out", out, *flags, "--force", code=3)
    assert "Unknown data set" in osa_package("web", page_model, "--out", out, "--samples", "digit", code=3)


def test_a_page_of_a_sequence_model_is_refused(exported: Exported, tmp_path: Path) -> None:
    assert "one picture" in osa_package("web", exported("encoder", "onnx"), "--out", tmp_path / "page", code=3)
