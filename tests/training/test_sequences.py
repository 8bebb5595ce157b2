"""Training of encoders on sequences of different length, and what cannot be trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from osa_runtime.cli.main import app
from osa_runtime.errors import ConfigError, DataError
from osa_runtime.evaluation import evaluate
from osa_runtime.models import SkiplessEncoder, load_checkpoint
from osa_runtime.training import TrainingSettings, load_sequences, train_classifier

RANDOM = np.random.RandomState(0)
X, Y, LENGTHS = RANDOM.randint(0, 7, (20, 6)), np.arange(20) % 3, RANDOM.randint(1, 7, 20)
TINY = TrainingSettings(depth=1, dim=8, heads=2, epochs=2, batch_size=8, validation=0.2)


def saved(folder: Path, **arrays: Any) -> Path:
    np.savez(folder / "sequences.npz", **arrays)
    return folder / "sequences.npz"


@pytest.mark.slow
@pytest.mark.parametrize(
    "x", [pytest.param(X, id="ids"), pytest.param(RANDOM.randn(20, 6, 3), id="vectors")]
)  # fmt: skip
def test_an_encoder_is_trained_saved_and_evaluated(x: Any, tmp_path: Path) -> None:
    data = load_sequences(saved(tmp_path, x=x, y=Y, lengths=LENGTHS))
    result = train_classifier(data, TINY, tmp_path / "run")
    model = load_checkpoint(tmp_path / "run")
    assert isinstance(model, SkiplessEncoder)
    assert (model.config.vocabulary, model.config.features) == ((7, None) if x.ndim == 2 else (None, 3))
    with torch.no_grad():
        predicted = model(torch.as_tensor(data.x_test), torch.as_tensor(data.mask_test)).argmax(1).numpy()
    assert (predicted == data.y_test).mean() == result.test_accuracy
    np.savez(tmp_path / "test.npz", tokens=data.x_test, mask=data.mask_test, y=data.y_test)
    assert evaluate(tmp_path / "run", tmp_path / "test.npz").accuracy.value == result.test_accuracy


def test_padding_does_not_matter(tmp_path: Path) -> None:
    mask = np.arange(6) < LENGTHS[:, None]
    first = load_sequences(saved(tmp_path, x=X, y=Y, lengths=LENGTHS))
    other = load_sequences(saved(tmp_path, x=np.where(mask, X, -5), y=Y, mask=mask))
    assert first.sha256 == other.sha256


def test_the_command_line_trains_an_encoder(tmp_path: Path) -> None:
    file = saved(tmp_path, x=X, y=Y, x_test=X[:4], y_test=Y[:4], class_names=np.array(["a", "b", "c"]))
    flags = ["--depth", "1", "--dim", "8", "--heads", "2", "--epochs", "1", "--model", "encoder"]
    done = CliRunner().invoke(app, ["train", "--data", str(file), "--out", str(tmp_path / "run"), *flags])
    assert done.exit_code == 0, done.output
    refused = CliRunner().invoke(app, ["train", "digits", "--out", str(tmp_path / "other"), *flags])
    assert (refused.exit_code, "takes sequences from --data" in " ".join(refused.output.split())) == (2, True)


@pytest.mark.parametrize("fields", [{"pool": "cls"}, {"patch_size": 2}], ids=str)
def test_settings_of_images_are_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    data = load_sequences(saved(tmp_path, x=X, y=Y))
    with pytest.raises(ConfigError, match="models of images"):
        train_classifier(data, TrainingSettings(**fields), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        pytest.param({"x": X}, "lacks y", id="no labels"),
        pytest.param({"x": X, "y": Y, "x_test": X}, "lacks y_test", id="half a test set"),
        pytest.param({"x": X.astype(float), "y": Y}, "expected \\(n, tokens\\) whole numbers", id="ids as floats"),
        pytest.param({"x": X[0], "y": Y}, "expected \\(n, tokens\\)", id="one sequence"),
        pytest.param({"x": X - 1, "y": Y}, "holds the token -1", id="negative id"),
        pytest.param({"x": X + 2**22, "y": Y}, "there may be 4194304", id="too many ids"),
        pytest.param({"x": X, "y": Y[:3]}, "has 3 labels", id="too few labels"),
        pytest.param(
            {"x": X, "y": Y, "lengths": LENGTHS - 1},
            r"lengths has shape \(20,\) and type int64, from 0 to .*expected 20 whole numbers from 1 to 6",
            id="empty",
        ),
        pytest.param({"x": X, "y": Y, "lengths": LENGTHS + 6}, "from 1 to 6", id="too long"),
        pytest.param({"x": X, "y": Y, "mask": X > 99}, "with a real token", id="masked out"),
        pytest.param({"x": X, "y": Y, "mask": X > 0, "lengths": LENGTHS}, "both lengths and mask", id="both"),
        pytest.param({"x": np.full((4, 2, 2), np.nan), "y": Y[:4]}, "NaN, infinity", id="NaN"),
        pytest.param({"x": X, "y": Y, "x_test": X[:, :3], "y_test": Y}, "x is \\(6,\\)", id="other length"),
        pytest.param({"x": X[:1], "y": Y[:1]}, "at least 2 are needed", id="one"),
        pytest.param({"x": X, "y": Y, "class_names": np.array(["a"])}, "there are 3 classes", id="too few names"),
    ],
)
def test_what_cannot_be_trained_on_is_named(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        load_sequences(saved(tmp_path, **arrays))
