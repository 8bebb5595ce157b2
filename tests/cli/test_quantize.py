"""``osa quantize``: what it prints, what it refuses, and that the other commands take what it writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from made_once import export_checkpoint
from osa_runtime.artifact import Artifact
from osa_runtime.cli.main import app
from small_models import feeds

Exported = Callable[[str, str], Path]


def osa(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200", "NO_COLOR": "1"})


def examples(folder: Path) -> Path:
    np.savez(folder / "examples.npz", **feeds("vit", 48))
    return folder / "examples.npz"


def test_it_says_sizes_and_deviation(exported: Exported, tmp_path: Path) -> None:
    shown = osa("quantize", exported("vit", "onnx"), "--out", tmp_path / "small")
    assert shown.exit_code == 0, shown.output
    for words in ("w8: weights of 8 bits", "times smaller", "6 weights", "deviation from the source", "random inputs"):
        assert words in shown.output


def test_json_is_one_object(exported: Exported, tmp_path: Path) -> None:
    arguments = ("--activations", "static", "--calibration", examples(tmp_path), "--keep", "head", "--json")
    shown = osa("quantize", exported("vit", "onnx"), "--out", tmp_path / "small", *arguments)
    assert shown.exit_code == 0, shown.output
    facts = json.loads(shown.stdout)
    sizes = {"before": exported("vit", "onnx"), "after": tmp_path / "small"}
    assert facts["size"] == {when: (folder / "model.onnx").stat().st_size for when, folder in sizes.items()}
    assert facts["kept"] == ["head/Gemm"]
    assert facts["measured_on"] == "48 examples of the calibration"
    assert 0 < facts["deviation"]["logits"]["max_rel"] < 0.1
    assert facts["notes"] == ["inputs beyond the calibrated ranges are cut off silently"]


def test_the_other_commands_take_it(exported: Exported, tmp_path: Path) -> None:
    source, small = exported("vit", "onnx"), tmp_path / "small"
    assert osa("quantize", source, "--out", small).exit_code == 0
    np.save(tmp_path / "x.npy", feeds("vit", 2)["images"])
    for arguments in (
        ("run", small, "--input", tmp_path / "x.npy"),
        ("compare", small, source),
        ("verify", small, "--against", source.parent / "vit", "--batch", "2"),
        ("bench", small, "--against", source.parent / "vit", "--seconds", "0.01", "--batch", "1"),
    ):
        shown = osa(*arguments)
        assert shown.exit_code == 0, (arguments, shown.output)
    shown = osa("inspect", small)
    assert "weights int8, activations none, weight_bits 8, quantized 6, kept nothing" in shown.output


def test_dynamic_warns_of_neighbours(exported: Exported, tmp_path: Path) -> None:
    shown = osa("quantize", exported("vit", "onnx"), "--out", tmp_path / "small", "--activations", "dynamic")
    assert "a row's answer depends on the other rows" in shown.output


REFUSED = {
    "static without examples": (("--activations", "static"), 2, "needs --calibration FILE.npz"),
    "a file that is not there": (("--calibration", "none.npz"), 2, "--calibration none.npz: there is no such file"),
    "an unknown part": (("--keep", "haed"), 2, "--keep haed names no weight"),
    "an unknown mode": (("--activations", "sometimes"), 2, "sometimes"),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_wrong_options(exported: Exported, tmp_path: Path, wrong: str) -> None:
    arguments, code, words = REFUSED[wrong]
    shown = osa("quantize", exported("vit", "onnx"), "--out", tmp_path / "small", *arguments)
    assert (shown.exit_code, words in shown.output) == (code, True), shown.output
    assert not (tmp_path / "small").exists()


@pytest.mark.parametrize(("kind", "words"), [("torchscript", "--format onnx"), ("pt2", "--format onnx")])
def test_torch_formats_are_refused(exported: Exported, tmp_path: Path, kind: str, words: str) -> None:
    shown = osa("quantize", exported("vit", kind), "--out", tmp_path / "small")
    assert shown.exit_code == 2
    assert words in shown.output


def test_what_was_rounded_before_is_refused(exported: Exported, tmp_path: Path) -> None:
    source = exported("vit", "onnx")
    assert osa("quantize", source, "--out", tmp_path / "small").exit_code == 0
    shown = osa("quantize", tmp_path / "small", "--out", tmp_path / "smaller")
    assert shown.exit_code == 2
    assert "is quantised already" in shown.output
    export_checkpoint(source.parent / "vit", tmp_path / "half", dtype="fp16")
    shown = osa("quantize", tmp_path / "half", "--out", tmp_path / "smaller")
    assert shown.exit_code == 2
    assert "is in fp16, expected fp32" in shown.output
    assert not (tmp_path / "smaller").exists()


def test_an_existing_folder_needs_force(exported: Exported, tmp_path: Path) -> None:
    source = exported("vit", "onnx")
    assert osa("quantize", source, "--out", tmp_path / "small").exit_code == 0
    shown = osa("quantize", source, "--out", tmp_path / "small", "--keep", "head")
    assert shown.exit_code == 3
    assert "--force" in shown.output
    assert osa("quantize", source, "--out", tmp_path / "small", "--keep", "head", "--force").exit_code == 0
    assert Artifact.open(tmp_path / "small").manifest.quantization.kept == ("head/Gemm",)


def test_the_source_is_never_written_over_and_must_be_intact(exported: Exported, tmp_path: Path) -> None:
    source = export_checkpoint(exported("vit", "onnx").parent / "vit", tmp_path / "source")
    shown = osa("quantize", source.folder, "--out", source.folder, "--force")
    assert shown.exit_code == 3
    assert "choose a separate folder" in shown.output
    source.model_path.write_bytes(source.model_path.read_bytes() + b"\0")
    shown = osa("quantize", source.folder, "--out", tmp_path / "small")
    assert shown.exit_code == 3
    assert "its hash differs" in shown.output


def test_something_else_than_an_artifact(tmp_path: Path) -> None:
    shown = osa("quantize", tmp_path / "nothing", "--out", tmp_path / "small")
    assert shown.exit_code == 3
    assert "expected a folder that `osa export` wrote" in shown.output
