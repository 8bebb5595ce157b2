"""Models that take pixels as they are stored: the standardisation is a part of their first layer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from made_once import export_checkpoint
from osa_runtime.artifact import Artifact
from osa_runtime.errors import InputError
from osa_runtime.exporters.folding import prepared
from osa_runtime.exporters.settings import ExportSettings
from osa_runtime.models import SkiplessEncoder, SkiplessViT, ViTConfig, load_checkpoint, save_checkpoint
from osa_runtime.models.config import EncoderConfig
from osa_runtime.pixels import Standardisation
from osa_runtime.runtime.session import load
from osa_runtime.verification import verify
from small_models import SIZES

pytestmark = pytest.mark.slow

GREY = Standardisation((4.9,), (6.0,), (0.0, 16.0))
COLOUR = Standardisation((110.0, 90.0, 128.0), (60.0, 50.0, 70.0), (0.0, 255.0))
UNIT = Standardisation((0.3,), (0.2,), (0.0, 1.0))
WITH_NEGATIVE = Standardisation((0.1,), (0.5,), (-1.0, 1.0))
NAMES = tuple("abcdefghij")


def saved(folder: Path, standardisation: Standardisation | None, channels: int = 1) -> Path:
    torch.manual_seed(0)
    model = SkiplessViT(ViTConfig(classes=10, channels=channels, **SIZES))
    return save_checkpoint(model, folder, standardisation=standardisation, class_names=NAMES)


def trained_on(checkpoint: Path, images: np.ndarray, standardisation: Standardisation) -> np.ndarray:
    """The answer of the trained model to pixels in the units that it was trained in."""
    ready = standardisation.standardise(images.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    with torch.no_grad():
        return load_checkpoint(checkpoint)(torch.from_numpy(np.ascontiguousarray(ready))).numpy()


@pytest.mark.parametrize("kind", ["onnx", "torchscript"])
@pytest.mark.parametrize("standardisation", [GREY, COLOUR], ids=["grey", "colour"])
def test_raw_pixels_give_what_standardised_ones_give(
    tmp_path: Path, kind: str, standardisation: Standardisation
) -> None:
    channels, white = len(standardisation.mean), int(standardisation.pixels[1])
    checkpoint = saved(tmp_path / "c", standardisation, channels)
    artifact = export_checkpoint(checkpoint, tmp_path / "a", pixels="uint8", format=kind)
    images = np.random.default_rng(0).integers(0, white + 1, (5, channels, 8, 8)).astype(np.uint8)
    found, expected = (
        load(artifact.folder).run({"images": images})["logits"],
        trained_on(checkpoint, images, standardisation),
    )
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize(("standardisation", "low", "high"), [(UNIT, 0.0, 1.0), (WITH_NEGATIVE, -1.0, 1.0)])
def test_fractions_become_bytes(tmp_path: Path, standardisation: Standardisation, low: float, high: float) -> None:
    checkpoint = saved(tmp_path / "c", standardisation)
    artifact = export_checkpoint(checkpoint, tmp_path / "a", pixels="uint8")
    assert artifact.manifest.values == {"images": {"min": 0, "max": 255}}
    images = np.random.default_rng(0).integers(0, 256, (3, 1, 8, 8)).astype(np.uint8)
    found = load(artifact.folder).run({"images": images})["logits"]
    expected = trained_on(checkpoint, low + images / 255.0 * (high - low), standardisation)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


@settings(max_examples=40)
@given(
    mean=st.floats(-1e3, 1e3),
    std=st.floats(1e-3, 1e3),
    ends=st.tuples(st.floats(-1e3, 1e3), st.floats(1e-2, 1e3)),
)
def test_the_fold_is_exact_for_any_standardisation(mean: float, std: float, ends: tuple[float, float]) -> None:
    standardisation = Standardisation((mean,), (std,), (ends[0], ends[0] + ends[1])).of_bytes
    torch.manual_seed(0)
    model = SkiplessViT(ViTConfig(classes=10, **SIZES)).double().eval()
    model.take_bytes(standardisation)
    folded = prepared(model, ExportSettings())
    patches = torch.randint(0, 256, (2, 16, 4)).double()
    expected, found = model.embed(patches), folded.embed(patches)
    assert type(folded.embed) is torch.nn.Linear
    # what cancels is W·mean/std, so that is what the error is relative to
    size = expected.abs().max() + abs(standardisation.mean[0]) / standardisation.std[0]
    assert (found - expected).abs().max() <= 1e-13 * size


def test_the_manifest_says_what_clients_must_do(tmp_path: Path) -> None:
    artifact = export_checkpoint(saved(tmp_path / "c", GREY), tmp_path / "a", pixels="uint8")
    manifest = Artifact.open(artifact.folder).manifest
    assert str(manifest.inputs[0]) == "images: uint8[batch, 1, 8, 8]"
    assert manifest.values == {"images": {"min": 0, "max": 16}}
    assert str(manifest.interface.pixels["images"]) == "0…16, as they are"
    assert manifest.class_names == NAMES


def test_pixels_beyond_the_scale_are_refused(tmp_path: Path) -> None:
    artifact = export_checkpoint(saved(tmp_path / "c", GREY), tmp_path / "a", pixels="uint8")
    with pytest.raises(InputError, match="holds values from 0 to 17; the model takes 0 to 16"):
        load(artifact.folder).run({"images": np.arange(64, dtype=np.uint8).reshape(1, 1, 8, 8) % 18})


def test_verify_passes_and_finds_a_standardisation_that_was_changed(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path / "c", GREY)
    artifact = export_checkpoint(checkpoint, tmp_path / "a", pixels="uint8")
    assert verify(artifact.folder, against=checkpoint).certificate.verdict == "pass"
    config = json.loads((checkpoint / "config.json").read_text())
    config["preprocessing"]["mean"] = [5.4]
    (checkpoint / "config.json").write_text(json.dumps(config))
    changed = verify(artifact.folder, against=checkpoint).certificate
    assert changed.verdict == "fail"
    assert any("embed" in check.detail for check in changed.checks if not check.passed)


def test_half_precision(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path / "c", GREY)
    artifact = export_checkpoint(checkpoint, tmp_path / "a", pixels="uint8", dtype="fp16")
    assert verify(artifact.folder, against=checkpoint).certificate.verdict == "pass"


def test_what_cannot_be_folded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not say how pixels were standardised"):
        export_checkpoint(saved(tmp_path / "plain", None), tmp_path / "a", pixels="uint8")
    encoder = SkiplessEncoder(EncoderConfig(classes=3, vocabulary=11, max_length=64, **SIZES))
    with pytest.raises(InputError, match="is for image models"):
        export_checkpoint(save_checkpoint(encoder, tmp_path / "e"), tmp_path / "a", pixels="uint8")
    with pytest.raises(InputError, match="expected float32 or uint8"):
        export_checkpoint(saved(tmp_path / "c", GREY), tmp_path / "a", pixels="int8")
    assert not (tmp_path / "a").exists()
