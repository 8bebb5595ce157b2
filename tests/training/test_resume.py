"""Runs that are interrupted, resumed, repeated, damaged or without room on the disk."""

from __future__ import annotations

import dataclasses
import errno
import json
from pathlib import Path

import pytest
import torch

from osa_runtime.errors import (
    CheckpointError,
    ConfigError,
    InputError,
    StorageError,
)
from osa_runtime.training import Dataset, TrainingSettings, train_classifier
from osa_runtime.training import run as run_module
from training_runs import Watcher, names, weights

pytestmark = pytest.mark.slow


# 48 training images in batches of 16 are 3 steps an epoch, 9 in all.
@pytest.mark.parametrize("stop_at", [1, 4, 5, 9], ids=["first step", "start of epoch 2", "middle", "last step"])
def test_an_interrupted_run_continues_to_the_same_end(
    images: Dataset, tiny: TrainingSettings, tmp_path: Path, stop_at: int
) -> None:
    straight = train_classifier(images, tiny, tmp_path / "straight")
    with pytest.raises(KeyboardInterrupt):
        train_classifier(images, tiny, tmp_path / "cut", observer=Watcher(stop_at))
    assert names(tmp_path / "cut") == {"state.pt"}
    watcher = Watcher()
    resumed = train_classifier(images, tiny, tmp_path / "cut", observer=watcher)
    assert watcher.finished == (stop_at - 1) // 3
    assert weights(tmp_path / "cut") == weights(tmp_path / "straight")
    without_time = [[dataclasses.replace(r, seconds=0) for r in run.history] for run in (straight, resumed)]
    assert without_time[0] == without_time[1]


def test_a_failure_while_writing_results_only_repeats_the_writing(
    images: Dataset, tiny: TrainingSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise StorageError("no space")

    with monkeypatch.context() as patch, pytest.raises(StorageError):
        patch.setattr(run_module, "draw_curve", fail)
        train_classifier(images, tiny, tmp_path)
    before = weights(tmp_path)
    watcher = Watcher()
    train_classifier(images, tiny, tmp_path, observer=watcher)
    assert (watcher.finished, watcher.steps) == (3, 0)
    assert weights(tmp_path) == before
    assert names(tmp_path) == {"checkpoint", "metrics.json", "curve.png"}


def test_resuming_with_other_settings_names_the_difference(
    images: Dataset, tiny: TrainingSettings, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_classifier(images, tiny, tmp_path, observer=Watcher(5))
    before = (tmp_path / "state.pt").read_bytes()
    with pytest.raises(InputError, match=r"epochs was 3 and is now 4; seed was 0 and is now 7\. .*force=True"):
        train_classifier(images, dataclasses.replace(tiny, epochs=4, seed=7), tmp_path)
    other_pixels = dataclasses.replace(images, sha256="0")
    with pytest.raises(InputError, match="data-sha256 was"):
        train_classifier(other_pixels, tiny, tmp_path)
    assert (tmp_path / "state.pt").read_bytes() == before


def test_a_finished_run_is_kept_unless_forced(images: Dataset, tiny: TrainingSettings, tmp_path: Path) -> None:
    train_classifier(images, tiny, tmp_path)
    before = weights(tmp_path)
    with pytest.raises(InputError, match=r"holds a finished run .*force=True"):
        train_classifier(images, tiny, tmp_path)
    train_classifier(images, dataclasses.replace(tiny, seed=3), tmp_path, force=True)
    assert weights(tmp_path) != before


def test_a_forced_run_that_is_killed_resumes_the_new_run(
    images: Dataset, tiny: TrainingSettings, tmp_path: Path
) -> None:
    train_classifier(images, tiny, tmp_path)
    other = dataclasses.replace(tiny, seed=3)
    with pytest.raises(KeyboardInterrupt):
        train_classifier(images, other, tmp_path, force=True, observer=Watcher(5))
    assert names(tmp_path) == {"state.pt"}
    train_classifier(images, other, tmp_path)
    assert json.loads((tmp_path / "metrics.json").read_text())["settings"]["seed"] == 3


@pytest.mark.parametrize("keep", [0, 10, 900], ids=["empty", "ten bytes", "half"])
def test_a_damaged_state_is_refused_until_forced(
    images: Dataset, tiny: TrainingSettings, tmp_path: Path, keep: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_classifier(images, tiny, tmp_path, observer=Watcher(5))
    state = tmp_path / "state.pt"
    state.write_bytes(state.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"state\.pt cannot be read .*force=True"):
        train_classifier(images, tiny, tmp_path)
    train_classifier(images, tiny, tmp_path, force=True)


def test_a_state_of_another_format_is_refused(images: Dataset, tiny: TrainingSettings, tmp_path: Path) -> None:
    torch.save({"format": 99}, tmp_path / "state.pt")
    with pytest.raises(CheckpointError, match="expected format 2"):
        train_classifier(images, tiny, tmp_path)


def test_a_state_whose_weights_do_not_fit_is_refused(images: Dataset, tiny: TrainingSettings, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_classifier(images, tiny, tmp_path, observer=Watcher(5))
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    state["model"].popitem()
    torch.save(state, tmp_path / "state.pt")
    with pytest.raises(CheckpointError, match="does not fit the model"):
        train_classifier(images, tiny, tmp_path)


def test_a_model_that_cannot_be_built_leaves_no_trace(images: Dataset, tiny: TrainingSettings, tmp_path: Path) -> None:
    for change in ({"heads": 3}, {"patch_size": 3}):
        with pytest.raises(ConfigError):
            train_classifier(images, dataclasses.replace(tiny, **change), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_unwritable_place_shows_before_training(images: Dataset, tiny: TrainingSettings, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    watcher = Watcher()
    with pytest.raises(StorageError, match="Cannot write"):
        train_classifier(images, tiny, tmp_path / "file" / "run", observer=watcher)
    assert watcher.steps == 0


def test_a_disk_that_fills_up_keeps_the_last_epoch(
    images: Dataset, tiny: TrainingSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_classifier(images, tiny, tmp_path / "straight")
    real, calls = Path.write_bytes, []

    def full_at_third(self: Path, content: bytes) -> int:
        calls.append(self)
        if len(calls) == 3:
            real(self, content[:100])
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, content)

    with monkeypatch.context() as patch, pytest.raises(StorageError, match="No space left on device"):
        patch.setattr(Path, "write_bytes", full_at_third)
        train_classifier(images, tiny, tmp_path / "cut")
    assert names(tmp_path / "cut") == {"state.pt"}
    train_classifier(images, tiny, tmp_path / "cut")
    assert weights(tmp_path / "cut") == weights(tmp_path / "straight")
