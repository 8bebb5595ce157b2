"""The preprocessing of pixels travels with the model, from training to pictures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from osa_runtime import SkiplessViT, Standardisation, ViTConfig, load, load_checkpoint, save_checkpoint
from osa_runtime.artifact import Artifact
from osa_runtime.cli.main import app
from osa_runtime.errors import ArtifactError, CheckpointError, InputError
from osa_runtime.exporters import export, export_checkpoint
from osa_runtime.models.checkpoint import read_standardisation
from osa_runtime.packaging.triton_repository import package_triton

pytestmark = pytest.mark.slow

SIZES = {"image_size": (8, 8), "patch_size": 4, "dim": 16, "depth": 1, "heads": 2}
TRAINED = Standardisation((4.0, 5.0, 6.0), (2.0, 3.0, 4.0), (0.0, 16.0))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = SkiplessViT(ViTConfig(classes=10, channels=3, **SIZES))
    return save_checkpoint(model, tmp_path_factory.mktemp("run") / "checkpoint", standardisation=TRAINED)


@pytest.fixture(scope="module")
def artifact(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_checkpoint(checkpoint, tmp_path_factory.mktemp("exported") / "vit").folder


def test_white_and_black_are_those_of_the_training_images() -> None:
    picture = np.stack([np.zeros((2, 2)), np.ones((2, 2)), np.full((2, 2), 0.5)], axis=-1)
    np.testing.assert_allclose(TRAINED.apply(picture)[0, 0], [(0 - 4) / 2, (16 - 5) / 3, (8 - 6) / 4])
    assert Standardisation.from_dict(json.loads(json.dumps(TRAINED.as_dict()))) == TRAINED


def test_it_goes_from_the_checkpoint_into_the_manifest(checkpoint: Path, artifact: Path) -> None:
    assert read_standardisation(checkpoint) == TRAINED
    manifest = Artifact.open(artifact).manifest
    assert manifest.interface.pixels["images"] == TRAINED
    load_checkpoint(checkpoint)


def test_a_picture_is_treated_as_in_training(artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3)).astype(np.uint8)
    image.fromarray(pixels).save("colours.png")
    told = CliRunner().invoke(app, ["run", str(artifact), "--input", "colours.png", "--out", "y.npz", "--json"])
    assert told.exit_code == 0, told.output
    assert "scaled to 0…16, then (pixel - 4, 5, 6) / 2, 3, 4, as in training" in told.output
    images = (pixels / 255 * 16 - TRAINED.mean) / TRAINED.std
    expected = load(artifact).run({"images": images.transpose(2, 0, 1)[None].astype(np.float32)})["logits"]
    np.testing.assert_allclose(np.load("y.npz")["logits"], expected, rtol=1e-4, atol=1e-6)
    other = CliRunner().invoke(app, ["run", str(artifact), "-i", "colours.png", "--mean", "0.5", "--std", "1"])
    assert "scaled to 0…1, then (pixel - 0.5) / 1, as --mean and --std say" in other.output


@pytest.mark.parametrize(
    ("mean", "std"), [("0.4,0.5,0.6", "0.2,0.3,0.4"), ("-0.4,0.5,1e-1", "0.25"), ("0.5", "1,2,3")], ids=str
)
def test_one_number_for_each_channel(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mean: str, std: str
) -> None:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(1).integers(0, 256, (8, 8, 3)).astype(np.uint8)
    image.fromarray(pixels).save("colours.png")
    flags = ["--mean", mean, "--std", std, "--out", "y.npz"]
    told = CliRunner().invoke(app, ["run", str(artifact), "--input", "colours.png", *flags])
    assert told.exit_code == 0, told.output
    means, deviations = ([float(number) for number in text.split(",")] for text in (mean, std))
    images = ((pixels / 255 - means) / deviations).transpose(2, 0, 1)[None].astype(np.float32)
    expected = load(artifact).run({"images": images})["logits"]
    np.testing.assert_allclose(np.load("y.npz")["logits"], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mean", ["0.1,0.2", "0.1,0.2,0.3,0.4", "0.1;0.2;0.3", "", "nan,0,0", "inf"])
def test_as_many_numbers_as_channels(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mean: str
) -> None:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    image.new("RGB", (8, 8)).save("black.png")
    told = CliRunner().invoke(app, ["run", str(artifact), "-i", "black.png", "--mean", mean, "--std", "1"])
    assert told.exit_code == 2
    assert f"--mean is {mean!r}, expected one finite number, or 3 with commas" in told.output


def test_it_is_shown_and_handed_on(artifact: Path, tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["inspect", str(artifact), "--provider", "cpu"]).output
    assert "0…16, then (pixel - 4, 5, 6) / 2, 3, 4" in shown
    package_triton([artifact], tmp_path / "models")
    text = (tmp_path / "models" / artifact.name / "config.pbtxt").read_text()
    assert 'key: "preprocessing.images"' in text
    assert "4.0, 5.0, 6.0" in text


DAMAGE: dict[str, tuple[object, str]] = {
    "no object": ([1], "must have the formula|expected an object"),
    "formula": (TRAINED.as_dict() | {"formula": "pixel"}, "must have the formula"),
    "no list": (TRAINED.as_dict() | {"mean": 4}, "must be lists"),
    "lengths": (TRAINED.as_dict() | {"mean": [4]}, "a number for each channel"),
    "text": (TRAINED.as_dict() | {"mean": ["4", 5, 6]}, "finite numbers"),
    "zero": (TRAINED.as_dict() | {"std": [0, 1, 1]}, "std must be above 0"),
    "range": (TRAINED.as_dict() | {"pixels": [1, 1]}, "the lower number first"),
    "infinite": (TRAINED.as_dict() | {"pixels": [0, float("inf")]}, "finite numbers"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named(case: str, checkpoint: Path, artifact: Path, tmp_path: Path) -> None:
    fields, message = DAMAGE[case]
    for source, name, error in (
        (checkpoint, "config.json", CheckpointError),
        (artifact, "manifest.json", ArtifactError),
    ):
        copy = tmp_path / name
        shutil.copytree(source, copy)
        content = json.loads((copy / name).read_text())
        content["preprocessing"] = {"images": fields} if name == "manifest.json" else fields
        (copy / name).write_text(json.dumps(content))
        with pytest.raises(error, match=message):
            Artifact.open(copy) if name == "manifest.json" else read_standardisation(copy)


def test_as_many_channels_as_the_model_has(tmp_path: Path) -> None:
    model = SkiplessViT(ViTConfig(classes=10, channels=1, **SIZES))
    where = save_checkpoint(model, tmp_path / "checkpoint", standardisation=TRAINED)
    with pytest.raises(CheckpointError, match="standardises 3 channels, but the model has 1"):
        export_checkpoint(where, tmp_path / "out")


def test_it_is_refused_for_an_input_that_does_not_exist(tmp_path: Path) -> None:
    pixels = {"imges": Standardisation((0.5,), (0.25,), (0.0, 1.0))}
    with pytest.raises(InputError, match="names the input 'imges', which does not hold images: input"):
        export(torch.nn.Flatten(), (torch.zeros(2, 1, 4, 4),), tmp_path / "out", preprocessing=pixels)
    pixels = {"input": Standardisation((0.5, 0.5), (0.25, 0.25), (0.0, 1.0))}
    with pytest.raises(InputError, match="has 2 means, but the input has 1 channels"):
        export(torch.nn.Flatten(), (torch.zeros(2, 1, 4, 4),), tmp_path / "out", preprocessing=pixels)
    assert not (tmp_path / "out").exists()
