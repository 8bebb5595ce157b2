"""Accuracy is what training would have measured, in every format; whatever does not fit is an error, never a figure."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from osa_runtime import OsaError, Standardisation, evaluate, load
from osa_runtime.artifact import describe_files
from osa_runtime.models import EncoderConfig, SkiplessEncoder, SkiplessViT, ViTConfig, save_checkpoint
from osa_runtime.training.datasets import load_dataset, load_test_images
from small_models import feeds

pytestmark = pytest.mark.slow

Made = Callable[..., Path]


@pytest.mark.parametrize("kind", ["onnx", "torchscript", "pt2", "checkpoint"])
def test_the_accuracy_is_that_of_training(kind: str, made: Made, checkpoint: Path, right: np.ndarray) -> None:
    found = evaluate(checkpoint if kind == "checkpoint" else made(kind), "digits", checkpoint)
    labels = load_dataset("digits").y_test
    assert 0.2 < right.mean() < 0.99
    assert (found.accuracy.samples, found.accuracy.correct) == (len(right), right.sum())
    assert found.accuracy.by_class == tuple(
        (int((labels == c).sum()), int(right[labels == c].sum())) for c in range(10)
    )
    assert (found.differ, found.gained, found.lost, found.drop, found.p_value) == (0, 0, 0, 0.0, 1.0)
    assert found.notes == ()


def test_images_are_prepared_to_the_last_bit_as_in_training() -> None:
    data, images = load_dataset("digits"), load_test_images("digits")
    assert (data.standardisation.standardise(images.x).transpose(0, 3, 1, 2) == data.x_test).all()
    assert (images.y == data.y_test).all()


@pytest.mark.parametrize("options", [{"dtype": "fp16"}, {"static": True}], ids=["fp16", "one row at a time"])
def test_other_types_and_fixed_batches(options: dict[str, Any], made: Made, right: np.ndarray) -> None:
    found = evaluate(made(**options), "digits")
    assert abs(found.accuracy.correct - right.sum()) <= 1


def test_batches_and_limits_do_not_change_an_answer(made: Made, right: np.ndarray) -> None:
    for size in (1, 7, 359, 1000):
        assert evaluate(made(), "digits", batch_size=size).accuracy.correct == right.sum()
    for limit in (1, 2, 100, 359, 9999):
        chosen = np.linspace(0, 358, min(limit, 359)).round().astype(int)
        found = evaluate(made(), "digits", limit=limit).accuracy
        assert (found.samples, found.correct) == (len(chosen), right[chosen].sum())


def test_data_is_known_by_its_hash(made: Made) -> None:
    assert evaluate(made(), "digits", limit=20).sha256 == evaluate(made("pt2"), "digits", limit=20).sha256
    assert evaluate(made(), "digits", limit=20).sha256 != evaluate(made(), "digits", limit=21).sha256


def stored(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_a_file_of_ones_own(made: Made, right: np.ndarray, tmp_path: Path) -> None:
    images = load_test_images("digits")
    whole = evaluate(made(), stored(tmp_path / "a.npz", x=images.x[..., 0], y=images.y))
    assert whole.accuracy.correct == right.sum()
    assert "all samples of the file" in whole.notes[0]
    parts = stored(tmp_path / "b.npz", x=images.x[:9], y=images.y[:9], x_test=images.x[9:], y_test=images.y[9:])
    assert evaluate(made(), parts).accuracy.correct == right[9:].sum()
    bytes_ = stored(tmp_path / "c.npz", x=images.x.astype(np.uint8), y=images.y.astype(np.uint8))
    assert evaluate(made(), bytes_).accuracy.correct == right.sum()
    ready = load_dataset("digits")
    arrays = stored(tmp_path / "d.npz", images=ready.x_test, y=ready.y_test)
    assert evaluate(made(), arrays).accuracy.correct == right.sum()


def test_sequences_with_and_without_a_mask(exported: Callable[[str, str], Path], tmp_path: Path) -> None:
    folder, given = exported("encoder", "onnx"), feeds("encoder", batch=40)
    answers = load(folder).run(given)["logits"].argmax(1)
    data = stored(tmp_path / "words.npz", **given, y=answers)
    assert evaluate(folder, data, folder.parent / "encoder").accuracy.correct == 40
    full = {"tokens": given["tokens"], "mask": np.ones_like(given["mask"])}
    without = stored(tmp_path / "full.npz", tokens=given["tokens"], y=load(folder).run(full)["logits"].argmax(1))
    assert evaluate(folder, without).accuracy.correct == 40


@pytest.mark.parametrize("kind", ["onnx", "torchscript", "pt2"])
def test_token_ids_as_an_encoder_is_trained_on(kind: str, exported: Callable[[str, str], Path], tmp_path: Path) -> None:
    folder, given = exported("encoder", kind), feeds("encoder", batch=40)
    y, mask = load(folder).run(given)[load(folder).outputs[0].name].argmax(1), given["mask"]
    x = np.where(mask, given["tokens"], -9).astype(np.int32)  # padding may hold anything
    for name, padding in (("lengths", mask.sum(1)), ("mask", mask)):
        found = evaluate(folder, stored(tmp_path / "a.npz", x=x, y=y, **{name: padding}), folder.parent / "encoder")
        assert (found.accuracy.correct, found.differ) == (40, 0)
        assert "all samples of the file" in found.notes[0]
    parts = {"x": x, "y": 2 - y, "mask": mask, "x_test": x[:9], "y_test": y[:9], "mask_test": mask[:9]}
    found = evaluate(folder, stored(tmp_path / "b.npz", **parts, class_names=np.array(["a", "b", "c"])))
    assert (found.accuracy.correct, found.accuracy.samples, found.notes) == (9, 9, ())
    assert evaluate(folder, tmp_path / "b.npz", limit=2).accuracy.correct == 2


def test_vectors_are_sequences_or_images_as_the_model_takes_them(made: Made, tmp_path: Path) -> None:
    torch.manual_seed(0)
    encoder = SkiplessEncoder(EncoderConfig(classes=10, features=8, max_length=8, dim=8, depth=1, heads=2))
    save_checkpoint(encoder, tmp_path / "encoder")
    images = load_test_images("digits")
    rows = images.x[..., 0].astype(np.float32)
    with torch.no_grad():
        answers = encoder(torch.from_numpy(rows)).argmax(1).numpy()
    data = stored(tmp_path / "rows.npz", x=rows, y=answers)
    assert evaluate(tmp_path / "encoder", data).accuracy.correct == len(rows)
    pictures = stored(tmp_path / "pictures.npz", x=rows, y=images.y)
    assert evaluate(made(), pictures).accuracy == evaluate(made(), "digits").accuracy
    padded = stored(tmp_path / "padded.npz", x=rows, y=answers, lengths=np.full(len(rows), 4))
    assert evaluate(tmp_path / "encoder", padded).sha256 != evaluate(tmp_path / "encoder", data).sha256


def test_another_model_is_told_from_chance(made: Made, checkpoint: Path, tmp_path: Path) -> None:
    """The same artifact with another standardisation of pixels: the file of the model is the same, the answers not."""
    wrong = shutil.copytree(made(), tmp_path / "wrong")
    content = json.loads((wrong / "manifest.json").read_text())
    content["preprocessing"]["images"] |= {"mean": [14.0], "std": [1.5]}
    (wrong / "manifest.json").write_text(json.dumps(content))
    found = evaluate(wrong, "digits", checkpoint)
    assert found.drop > 5
    assert found.p_value < 1e-3
    assert found.lost - found.gained == found.against.correct - found.accuracy.correct  # type: ignore[union-attr]


def test_a_model_without_recorded_preprocessing_says_so(made: Made) -> None:
    found = evaluate(made() / "model.onnx", "digits", limit=20)
    assert "records no preprocessing: the images were fed as they are" in found.notes[0]


def nan_artifact(made: Made, home: Path) -> Path:
    """Its logits are the logarithm of what they were: NaN where that is negative."""
    import onnx
    from onnx import helper

    folder = shutil.copytree(made(), home / "nan")
    model = onnx.load(folder / "model.onnx")
    for node in model.graph.node:
        node.output[:] = ["before" if name == "logits" else name for name in node.output]
    model.graph.node.append(helper.make_node("Log", ["before"], ["logits"]))
    onnx.save(model, folder / "model.onnx")
    content = json.loads((folder / "manifest.json").read_text())
    content["files"] = {"model.onnx": dataclasses.asdict(describe_files(folder)["model.onnx"])}
    (folder / "manifest.json").write_text(json.dumps(content))
    return folder


def test_nan_is_no_answer(made: Made, tmp_path: Path) -> None:
    found = evaluate(nan_artifact(made, tmp_path), "digits")
    assert found.accuracy.nonfinite > 0
    assert found.accuracy.correct <= found.accuracy.samples - found.accuracy.nonfinite
    assert "returns NaN or Inf for" in str(found.failure)


X, Y = np.zeros((6, 8, 8)), np.arange(6)
X[:, 0] = 16
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no labels": (dict(x=X), "expected x with images"),
    "no images": (dict(y=Y), "expected x with images"),
    "empty": ({}, "holds nothing"),
    "other size": (dict(x=np.pad(X, ((0, 0), (0, 1), (0, 0))), y=Y), "The images are 9×8 with 1 channels, but"),
    "colour": (dict(x=np.stack([X] * 3, -1), y=Y), "with 3 channels, but"),
    "label too large": (dict(x=X, y=Y + 5), "has 10 classes, but data.npz has labels up to 10"),
    "negative label": (dict(x=X, y=Y - 1), "holds the label -1"),
    "labels in parts": (dict(x=X, y=Y + 0.5), "expected one whole number per image"),
    "more labels": (dict(x=X, y=np.arange(7)), "has 7 labels but"),
    "nan": (dict(x=np.where(X > 0, np.nan, X), y=Y), "holds NaN or infinity"),
    "bytes for sixteenths": (dict(x=X / 16 * 255, y=Y), "go from 0 to 255, but"),
    "one for sixteen": (dict(x=X / 1600, y=Y), "was trained on 0 to 16"),
    "another input": (dict(pictures=X, y=Y), "data.npz holds pictures; .* takes images"),
    "wrong array": (dict(images=X.astype(np.float32), y=Y), "has the shape"),
    "other count": (dict(images=np.zeros((3, 1, 8, 8), np.float32), y=Y), "has 6 labels but"),
    "objects": (dict(x=np.array([None] * 6), y=Y), "cannot be read"),
    "token ids": (dict(x=np.ones((6, 5), np.int64), y=Y), r"takes images: .*, but data.npz holds token ids"),
    "vectors": (dict(x=X, y=Y, lengths=Y + 1), r"takes images: .*, but data.npz holds vectors \(batch, tokens, 8\)"),
    "floats in a table": (dict(x=X[0], y=Y), "expected \\(n, tokens\\) whole numbers or"),
    "two paddings": (dict(x=X, y=Y, lengths=Y + 1, mask=X[..., 0] > -1), "both lengths and mask"),
    "length of nothing": (dict(x=X, y=Y, lengths=Y), "lengths has shape .* from 0 to 5; expected 6 whole numbers"),
}


@pytest.mark.parametrize(("arrays", "message"), REFUSED.values(), ids=REFUSED)
def test_data_that_does_not_fit_is_an_error(arrays: dict[str, Any], message: str, made: Made, tmp_path: Path) -> None:
    with pytest.raises(OsaError, match=message):
        evaluate(made(), stored(tmp_path / "data.npz", **arrays))


def test_other_wrong_requests(made: Made, exported: Callable[[str, str], Path], tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1,2")
    (tmp_path / "bad.npz").write_text("1,2")
    np.save(tmp_path / "one.npy", X)
    (tmp_path / "one.npy").rename(tmp_path / "one.npz")
    for arguments, message in (
        ((made(), "digit"), "did you mean digits"),
        ((made(), tmp_path / "data.csv"), "is not an .npz file, and not one of the data sets"),
        ((made(), tmp_path / "bad.npz"), "cannot be read"),
        ((made(), tmp_path / "one.npz"), "is a single array"),
        ((made(), tmp_path / "none.npz"), "cannot be read"),
        ((tmp_path / "none", "digits"), "does not exist"),
        ((tmp_path, "digits"), "expected a folder that `osa export` wrote"),
        ((exported("encoder", "onnx"), "digits"), "not images"),
    ):
        with pytest.raises(OsaError, match=message):
            evaluate(*arguments)
    for name in ("batch_size", "limit"):
        with pytest.raises(OsaError, match=f"{name}=0: expected a whole number"):
            evaluate(made(), "digits", **{name: 0})  # type: ignore[arg-type]


def test_another_number_of_classes(tmp_path: Path) -> None:
    other = save_checkpoint(SkiplessViT(ViTConfig(classes=12, dim=16, depth=1, heads=2)), tmp_path / "other")
    with pytest.raises(OsaError, match="has 12 classes, but digits has 10 classes"):
        evaluate(other, "digits")


def test_an_onnx_artifact_needs_no_torch(made: Made) -> None:
    script = (
        "import importlib.abc, sys\n"
        "class NoTorch(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'onnx', 'safetensors'):\n"
        "            raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, NoTorch())\n"
        "from osa_runtime import evaluate\n"
        f"print(evaluate({str(made())!r}, 'digits', limit=20).accuracy.samples)"
    )
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (child.returncode, child.stdout.strip()) == (0, "20"), child.stderr


def test_per_channel_means() -> None:
    """One mean for each channel, in float32 as training computes it."""
    standardisation = Standardisation((1.0, 2.0), (3.0, 4.0), (0.0, 9.0))
    found = standardisation.standardise(np.array([[[7, 6]]], np.uint8))
    assert found.dtype == np.float32
    assert found.ravel().tolist() == [2.0, 1.0]
