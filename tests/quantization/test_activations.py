"""Calibration files that are wrong in one way each, and how they are read when they are right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from made_once import export_checkpoint
from osa_runtime.artifact import Artifact
from osa_runtime.errors import InputError, RunError
from osa_runtime.quantization import quantize
from osa_runtime.quantization.activations import read_calibration
from small_models import feeds

Exported = Callable[[str, str], Path]


def written(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "examples.npz", **arrays)
    return folder / "examples.npz"


def with_nan(x: np.ndarray) -> np.ndarray:
    x[40, 0, 1, 1] = np.nan
    return x


IMAGES = feeds("vit", 48)["images"]
SEQUENCES = feeds("encoder", 48, 9)

WRONG_IMAGES = {
    "another name": ({"image": IMAGES}, "Unexpected input 'image'.*Did you mean images"),
    "nothing": ({}, "Missing input images"),
    "another shape": ({"images": IMAGES[..., :5]}, "size 5 on axis 3, expected 8"),
    "no axis of examples": ({"images": IMAGES[0]}, "of rank 3, expected rank 4"),
    "a number": ({"images": np.float32(1)}, "of rank 0, expected rank 4"),
    "another type": ({"images": IMAGES.astype(np.float64)}, "of type float64, expected float32"),
    "text": ({"images": np.array(["seven"] * 48)}, "not an array of numbers"),
    "NaN": ({"images": with_nan(IMAGES.copy())}, r"1 NaN or Inf of 3072 values, the first at \(40, 0, 1, 1\)"),
    "too few": ({"images": IMAGES[:15]}, "holds 15 examples, expected 16 or more"),
    "none at all": ({"images": IMAGES[:0]}, "holds 0 examples, expected 16 or more"),
    "a constant": ({"images": np.ones_like(IMAGES)}, "every value of images is 1.0"),
}


@pytest.mark.parametrize("wrong", WRONG_IMAGES)
def test_images_are_refused(exported: Exported, tmp_path: Path, wrong: str) -> None:
    arrays, words = WRONG_IMAGES[wrong]
    artifact = Artifact.open(exported("vit", "onnx"))
    with pytest.raises(InputError, match=words) as raised:
        read_calibration(written(tmp_path, **arrays), artifact)
    assert "examples.npz" in str(raised.value)


WRONG_SEQUENCES = {
    "no mask": ({"tokens": SEQUENCES["tokens"]}, "Missing input mask"),
    "fewer masks": (SEQUENCES | {"mask": SEQUENCES["mask"][:20]}, "48 of tokens, 20 of mask"),
    "fewer masks in the last portion": (SEQUENCES | {"mask": SEQUENCES["mask"][:47]}, "48 of tokens, 47 of mask"),
    "an unknown id": (SEQUENCES | {"tokens": SEQUENCES["tokens"] + 1}, "from 1 to 11; the model takes 0 to 10"),
    "too long": (feeds("encoder", 48, 65), "expected at most 64"),
}


@pytest.mark.parametrize("wrong", WRONG_SEQUENCES)
def test_sequences_are_refused(exported: Exported, tmp_path: Path, wrong: str) -> None:
    arrays, words = WRONG_SEQUENCES[wrong]
    with pytest.raises(InputError, match=words):
        read_calibration(written(tmp_path, **arrays), Artifact.open(exported("encoder", "onnx")))


def test_files_are_refused(exported: Exported, tmp_path: Path) -> None:
    artifact = Artifact.open(exported("vit", "onnx"))
    with pytest.raises(InputError, match="there is no such file"):
        read_calibration(tmp_path / "none.npz", artifact)
    (tmp_path / "text.npz").write_text("images")
    with pytest.raises(InputError, match="cannot be read as"):
        read_calibration(tmp_path / "text.npz", artifact)
    np.save(tmp_path / "one.npy", IMAGES)
    with pytest.raises(InputError, match=r"without a name; write it with numpy\.savez\('one', images=…\)"):
        read_calibration(tmp_path / "one.npy", artifact)


def test_examples_come_in_portions_and_none_is_lost(exported: Exported, tmp_path: Path) -> None:
    found = read_calibration(written(tmp_path, **SEQUENCES), Artifact.open(exported("encoder", "onnx")))
    assert found.examples == 48
    assert [len(portion["mask"]) for portion in found.feeds] == [32, 16]
    for name, array in SEQUENCES.items():
        np.testing.assert_array_equal(np.concatenate([portion[name] for portion in found.feeds]), array)


def test_a_fixed_batch_takes_a_multiple(exported: Exported, tmp_path: Path) -> None:
    import torch

    from osa_runtime.exporters import export
    from osa_runtime.models import load_checkpoint

    export(load_checkpoint(exported("vit", "onnx").parent / "vit"), (torch.randn(3, 1, 8, 8),), tmp_path / "three")
    artifact = Artifact.open(tmp_path / "three")
    found = read_calibration(written(tmp_path, images=IMAGES), artifact)
    assert [len(portion["images"]) for portion in found.feeds] == [3] * 16
    with pytest.raises(InputError, match="47 examples of images, but the model takes exactly 3 at a time"):
        read_calibration(written(tmp_path, images=IMAGES[:47]), artifact)


def test_examples_without_an_answer_are_refused(exported: Exported, tmp_path: Path) -> None:
    """A fixed number of squarings does not suffice for them: the model gives NaN, and NaN has no range."""
    checkpoint = exported("vit", "onnx").parent / "vit"
    export_checkpoint(checkpoint, tmp_path / "source", squarings=4)
    examples = written(tmp_path, images=300 * IMAGES)
    with pytest.raises(RunError, match="NaN or Inf"):
        quantize(tmp_path / "source", tmp_path / "small", activations="static", calibration=examples)
    assert not (tmp_path / "small").exists()
