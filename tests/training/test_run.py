"""A training run from settings to results: its files, its accuracy, its seeds and its held-out images."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from osa_runtime.errors import (
    DataError,
    InputError,
)
from osa_runtime.models import load_checkpoint
from osa_runtime.models.checkpoint import read_standardisation
from osa_runtime.pixels import Standardisation
from osa_runtime.training import Dataset, TrainingSettings, train_classifier, train_seeds
from osa_runtime.training.run import hold_out
from training_runs import Watcher, names, weights

pytestmark = pytest.mark.slow


def test_a_run_leaves_results_and_no_state(images: Dataset, tiny: TrainingSettings, tmp_path: Path) -> None:
    result = train_classifier(images, tiny, tmp_path / "run")
    assert names(tmp_path / "run") == {"checkpoint", "metrics.json", "curve.png"}
    assert (tmp_path / "run" / "curve.png").read_bytes().startswith(b"\x89PNG")
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["test_accuracy"] == result.test_accuracy == metrics["epochs"][-1]["test_accuracy"]
    assert metrics["settings"]["lr"] == 1e-3
    assert Standardisation.from_dict(metrics["data"]["preprocessing"]) == images.standardisation
    assert read_standardisation(tmp_path / "run" / "checkpoint") == images.standardisation
    assert str(tmp_path) not in json.dumps(metrics)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="plain"),
        pytest.param({"conditioning": "spectral", "spectral_lambda": 0.7}, id="λI"),
        pytest.param({"conditioning": "svd", "spectral_lambda": 0.7}, id="SVD"),
        pytest.param({"initialisation": "usual", "activation": "gelu", "pool": "cls"}, id="usual"),
        pytest.param({"dropout": 0.3}, id="dropout"),
        pytest.param({"validation": 0.25, "patience": 1}, id="early stopping"),
    ],
)
def test_the_checkpoint_repeats_the_reported_accuracy(
    images: Dataset, tiny: TrainingSettings, tmp_path: Path, changes: dict[str, object]
) -> None:
    result = train_classifier(images, dataclasses.replace(tiny, lr=1e-2, **changes), tmp_path)
    model = load_checkpoint(tmp_path / "checkpoint")
    predicted = model(torch.as_tensor(images.x_test)).argmax(dim=1).numpy()
    assert (predicted == images.y_test).mean() == result.test_accuracy


def test_training_learns(images: Dataset, tiny: TrainingSettings, tmp_path: Path) -> None:
    settings = dataclasses.replace(tiny, epochs=40, lr=1e-2)
    result = train_classifier(images, settings, tmp_path)
    assert result.history[-1].train_loss < 0.5 * result.history[0].train_loss
    assert result.test_accuracy > 0.9


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="osa"),
        pytest.param({"attention": "softmax", "residual": True, "norm": True}, id="ordinary vit"),
        pytest.param({"attention": "polynomial", "power": 1, "conditioning": "spectral"}, id="polynomial, conditioned"),
    ],
)
def test_same_seed_same_weights(
    images: Dataset, tiny: TrainingSettings, tmp_path: Path, changes: dict[str, object]
) -> None:
    settings = dataclasses.replace(tiny, epochs=1, **changes)
    for name in ("one", "two"):
        train_classifier(images, settings, tmp_path / name)
        torch.rand(7)  # the caller's use of random numbers must not matter
    train_classifier(images, dataclasses.replace(settings, seed=1), tmp_path / "other")
    assert weights(tmp_path / "one") == weights(tmp_path / "two") != weights(tmp_path / "other")


def test_the_caller_s_torch_is_left_as_it_was(images: Dataset, tiny: TrainingSettings, tmp_path: Path) -> None:
    before = torch.get_rng_state()
    train_classifier(images, dataclasses.replace(tiny, epochs=1), tmp_path)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.get_deterministic_debug_mode() == 0


@pytest.mark.parametrize(
    "changes",
    [{"conditioning": "svd"}, {"dropout": 0.5}, {"validation": 0.3, "patience": 1, "lr": 1e-6}, {"optimizer": "muon"}],
    ids=["SVD", "dropout", "early stopping", "Muon"],
)
def test_what_training_alone_has_survives_an_interruption(
    images: Dataset, tiny: TrainingSettings, tmp_path: Path, changes: dict[str, object]
) -> None:
    settings = dataclasses.replace(tiny, **changes)
    train_classifier(images, settings, tmp_path / "straight")
    with pytest.raises(KeyboardInterrupt):
        train_classifier(images, settings, tmp_path / "cut", observer=Watcher(5))
    train_classifier(images, settings, tmp_path / "cut")
    assert weights(tmp_path / "cut") == weights(tmp_path / "straight")


def test_early_stopping_keeps_the_epoch_with_the_smallest_validation_loss(
    images: Dataset, tiny: TrainingSettings, tmp_path: Path
) -> None:
    settings = dataclasses.replace(tiny, epochs=60, lr=0.05, validation=0.25, patience=3)
    result = train_classifier(images, settings, tmp_path)
    losses = [record.validation_loss for record in result.history]
    assert result.chosen.validation_loss == min(losses)
    assert len(losses) < 60
    assert losses.index(min(losses)) == len(losses) - 4
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["chosen_epoch"] == result.chosen.epoch
    assert metrics["test_accuracy"] == result.chosen.test_accuracy


def test_held_out_images_are_not_trained_on_and_are_the_same_for_every_seed(images: Dataset) -> None:
    kept, held_out = hold_out(images, 0.25)
    again = hold_out(images, 0.25)[1]
    assert held_out is not None
    assert again is not None
    assert (len(kept.y_train), len(held_out.y_test)) == (36, 12)
    assert (held_out.x_test == again.x_test).all()
    assert not {x.tobytes() for x in held_out.x_test} & {x.tobytes() for x in kept.x_train}
    assert hold_out(images, 0.0) == (images, None)
    with pytest.raises(DataError, match="leaves none of the 48 training samples"):
        hold_out(images, 0.999)


def test_seeds_are_runs_of_their_own_and_finished_ones_are_kept(
    images: Dataset, tiny: TrainingSettings, tmp_path: Path
) -> None:
    first = train_seeds(images, tiny, (3, 1), tmp_path)
    assert [run.settings.seed for run in first.runs] == [3, 1]
    before = weights(tmp_path / "seed-3")
    watcher = Watcher()
    again = train_seeds(images, tiny, (3, 1, 2), tmp_path, observer=watcher)
    assert watcher.steps == 9
    assert again.accuracies[:2] == first.accuracies
    assert weights(tmp_path / "seed-3") == before
    assert json.loads((tmp_path / "seeds.json").read_text())["mean"] == again.mean
    with pytest.raises(InputError, match=r"finished run with other settings \(epochs was 3 and is now 2\)"):
        train_seeds(images, dataclasses.replace(tiny, epochs=2), (3,), tmp_path)
    with pytest.raises(InputError, match=r"seeds=1,1: expected different whole numbers"):
        train_seeds(images, tiny, (1, 1), tmp_path)
