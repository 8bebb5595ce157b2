"""``osa run``: what it reads, what it prints, what it writes, and how it fails."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from osa_runtime import load
from osa_runtime.cli.main import app
from osa_runtime.runtime import onnx_session
from small_models import CLASSES, export_named, feeds

Exported = Callable[[str, str], Path]
runner = CliRunner()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", feeds("vit")["images"])
    sequence = feeds("encoder")
    np.savez("all.npz", **sequence)
    np.save("tokens.npy", sequence["tokens"])
    return tmp_path


def osa_run(*arguments: str | Path, code: int = 0) -> str:
    result = runner.invoke(app, ["run", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


def osa_run_json(*arguments: str | Path) -> dict[str, Any]:
    return json.loads(osa_run(*arguments, "--json"))


def test_an_input_is_needed_and_what_it_is_called_is_said(exported: Exported, tmp_path: Path) -> None:
    assert "No --input was given; the model takes images" in osa_run(exported("vit", "onnx"), code=2)
    assert "is an empty folder" in osa_run(tmp_path, code=3)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("kind", ["onnx", "torchscript"])
def test_the_likeliest_classes_are_shown(exported: Exported, kind: str) -> None:
    folder = exported("vit", kind)
    shown = osa_run(folder, "--input", "images=x.npy", "--top", "2")
    logits = load(folder).run(feeds("vit"))["logits"]
    assert "logits: float32[3, 10]" in shown
    for row, best in enumerate(logits.argmax(1)):
        assert f"[{row}]  class {best} " in shown
    assert shown.count("class") == 6


def test_classes_are_called_by_their_names(here: Path) -> None:
    folder, rows = export_named(here / "named"), np.eye(4, dtype=np.float32)
    np.save("rows.npy", rows)
    shown, report = osa_run(folder, "--input", "rows.npy"), osa_run_json(folder, "--input", "rows.npy")
    best = [CLASSES[i] for i in load(folder).run({"input": rows})["logits"].argmax(1)]
    assert [row["top"][0]["name"] for row in report["outputs"]["logits"]["rows"]] == best
    for row, name in enumerate(best):
        assert re.search(rf"\[{row}\]  class \d \({name}\) ", shown)


@pytest.mark.usefixtures("here")
def test_json_has_probabilities_of_every_row(exported: Exported) -> None:
    folder = exported("vit", "onnx")
    report = osa_run_json(folder, "--input", "x.npy", "--top", "10", "--threads", "1")
    assert report["placement"] == {"device": "cpu", "provider": "CPUExecutionProvider"}
    rows = report["outputs"]["logits"]["rows"]
    logits = load(folder).run(feeds("vit"))["logits"].astype(np.float64)
    for row, values in zip(rows, logits, strict=True):
        expected = np.exp(values) / np.exp(values).sum()
        assert [c["probability"] for c in row["top"]] == pytest.approx(sorted(expected, reverse=True))
        assert [c["class"] for c in row["top"]] == list(np.argsort(-values))


@pytest.mark.usefixtures("here")
def test_outputs_are_written(exported: Exported) -> None:
    folder = exported("encoder", "onnx")
    assert "all outputs are in y.npz" in osa_run(folder, "--input", "all.npz", "--out", "y.npz")
    with np.load("y.npz", allow_pickle=False) as written:
        assert written.files == ["logits"]
        np.testing.assert_allclose(written["logits"], load(folder).run(feeds("encoder"))["logits"], rtol=1e-6)
    assert sorted(p.name for p in Path().iterdir()) == ["all.npz", "tokens.npy", "x.npy", "y.npz"]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("value", ["tokens=tokens.npy", "tokens.npy", "tokens=all.npz"])
def test_a_missing_mask_means_that_all_tokens_are_real(exported: Exported, value: str) -> None:
    folder = exported("encoder", "onnx")
    report = osa_run_json(folder, "--input", value, "--out", "y.npz")
    assert report["notes"] == ["no mask was given: every token counts as real"]
    expected = load(folder).run(feeds("encoder") | {"mask": np.ones((3, 5), bool)})["logits"]
    np.testing.assert_allclose(np.load("y.npz")["logits"], expected, rtol=1e-6)


@pytest.mark.usefixtures("here")
def test_many_rows_are_cut_and_other_outputs_summarised(exported: Exported) -> None:
    np.save("many.npy", feeds("vit", 25)["images"])
    assert "… and 15 more rows" in osa_run(exported("vit", "onnx"), "--input", "many.npy")
    alone = exported("vit", "torchscript") / "model.pt"
    shown = osa_run(alone, "--input", "x.npy")
    assert "output: float32[3, 10]\n  min -" in shown
    assert "class" in osa_run(alone, "--input", "x.npy", "--top", "1")


@pytest.mark.usefixtures("here")
def test_a_picture_is_converted_resized_and_standardised(exported: Exported) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8)).astype(np.uint8)
    image.fromarray(pixels).save("grey.png")
    image.fromarray(np.repeat(pixels[..., None], 3, 2).repeat(3, 0).repeat(3, 1)).save("colour.png")
    folder = exported("vit", "onnx")
    report = osa_run_json(folder, "--input", "grey.png", "--input", "colour.png", "--out", "y.npz")
    assert "grey.png: L, 8×8 resized to 8×8, scaled to 0…1, then (pixel - 0." in report["notes"][0]
    assert "colour.png: L, 24×24 resized to 8×8" in report["notes"][1]
    scaled = pixels / 255.0
    images = ((scaled - scaled.mean()) / scaled.std()).astype(np.float32)[None, None]
    logits = np.load("y.npz")["logits"]
    np.testing.assert_allclose(logits[:1], load(folder).run({"images": images})["logits"], rtol=1e-4, atol=1e-6)
    assert logits.shape == (2, 10)
    osa_run(folder, "--input", "grey.png", "--mean", "0.5", "--std", "0.25", "--out", "z.npz")
    images = ((scaled - 0.5) / 0.25).astype(np.float32)[None, None]
    expected = load(folder).run({"images": images})["logits"]
    np.testing.assert_allclose(np.load("z.npz")["logits"], expected, rtol=1e-4, atol=1e-6)


WRONG: dict[str, tuple[str, list[str], int, str]] = {
    "no file": ("vit", ["--input", "images=no.npy"], 2, "There is no file no.npy"),
    "no such input": ("vit", ["--input", "image=x.npy"], 2, "names the input 'image'"),
    "which input": ("vit", ["--input", "all.npz"], 2, "Unexpected input 'tokens'"),
    "twice": ("vit", ["--input", "x.npy", "--input", "images=x.npy"], 2, "repeats images"),
    "pickle": ("vit", ["--input", "objects.npy"], 2, "holds no plain array"),
    "no array": ("vit", ["--input", "text.npy"], 2, "cannot be read as .npy or .npz"),
    "no picture": ("vit", ["--input", "text.png"], 2, "cannot be read as a picture"),
    "picture for tokens": ("encoder", ["--input", "text.png"], 2, "not clear which input takes images"),
    "mean alone": ("vit", ["--input", "one.png", "--mean", "0.5"], 2, "go together"),
    "std": (
        "vit",
        ["--input", "one.png", "--mean", "0", "--std", "0"],
        2,
        "expected numbers above 0",
    ),
    "type": ("vit", ["--input", "images=double.npy"], 2, "images.astype('float32')"),
    "out": ("vit", ["--input", "x.npy", "--out", "y.csv"], 2, "ends in .npz"),
    "device": ("vit", ["--input", "x.npy", "--device", "tpu"], 2, "Unknown device 'tpu'"),
    "nothing real": ("encoder", ["--input", "nothing.npz"], 3, "Output logits holds 9 NaN or Inf"),
    "NaN": ("vit", ["--input", "nan.npy"], 2, "Input images holds 64 NaN or Inf"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said(exported: Exported, here: Path, case: str) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("L", (9, 9)).save("one.png")
    np.save("objects.npy", np.array([{}], object), allow_pickle=True)
    np.save("double.npy", np.zeros((1, 1, 8, 8)))
    np.save("nan.npy", np.full((1, 1, 8, 8), np.nan, np.float32))
    np.savez("nothing.npz", tokens=np.zeros((3, 5), np.int64), mask=np.zeros((3, 5), bool))
    Path("text.npy").write_text("seven")
    Path("text.png").write_text("seven")
    model, arguments, code, message = WRONG[case]
    assert message in osa_run(exported(model, "onnx"), *arguments, code=code)
    assert not Path("y.npz").exists()


@pytest.mark.usefixtures("here")
def test_values_that_are_not_finite_can_be_looked_at(exported: Exported) -> None:
    np.savez("nothing.npz", tokens=np.zeros((1, 5), np.int64), mask=np.zeros((1, 5), bool))
    arguments = [exported("encoder", "onnx"), "--input", "nothing.npz", "--allow-nonfinite"]
    assert "NaN" in osa_run(*arguments)
    assert osa_run_json(*arguments)["outputs"]["logits"]["rows"][0]["top"][0]["logit"] is None


@pytest.mark.usefixtures("here")
def test_cuda_falls_back_only_when_allowed(exported: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_session, "onnx_cuda_problem", lambda: "the driver is missing.")
    arguments = [exported("vit", "onnx"), "--input", "x.npy", "--device", "cuda"]
    assert "cannot run on cuda:0: the driver is missing." in osa_run(*arguments, code=3)
    assert "note: cuda:0 was requested, but the model runs on the CPU" in osa_run(*arguments, "--allow-fallback")


def test_pictures_need_pillow(exported: Exported, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.png").touch()
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "needs Pillow" in osa_run(exported("vit", "onnx"), "--input", "a.png", code=3)


@pytest.mark.usefixtures("here")
def test_a_changed_model_is_refused(exported: Exported, tmp_path: Path) -> None:
    import shutil

    folder = shutil.copytree(exported("vit", "onnx"), tmp_path / "a")
    content = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(content.replace('"sha256": "', '"sha256": "0', 1))
    assert "its hash differs" in osa_run(folder, "--input", "x.npy", code=3)
    osa_run(folder, "--input", "x.npy", "--no-check-hash")
