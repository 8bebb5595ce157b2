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
    DataError,
    ExponentRangeError,
    InputError,
    MissingDependencyError,
    OsaError,
    StorageError,
)
from osa_runtime.models import load_checkpoint
from osa_runtime.models.checkpoint import read_standardisation
from osa_runtime.pixels import Standardisation
from osa_runtime.training import Dataset, EpochRecord, TrainingSettings, train_classifier, train_seeds
from osa_runtime.training import run as run_module
from osa_runtime.training.loop import Trainer
from osa_runtime.training.model import build_model, model_config
from osa_runtime.training.optimizers import make_optimizers
from osa_runtime.training.validation import hold_out

pytestmark = pytest.mark.slow


class Watcher:
    """Counts what a run tells, and pulls the plug at a chosen step."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.stop_at, self.steps, self.finished, self.records = stop_at, 0, 0, list[EpochRecord]()

    def begin(self, epochs: int, steps: int, finished: int) -> None:
        self.finished = finished

    def step(self, epoch: int, loss: float, accuracy: float) -> None:
        self.steps += 1
        if self.steps == self.stop_at:
            raise KeyboardInterrupt

    def epoch(self, record: EpochRecord) -> None:
        self.records.append(record)


def weights(out: Path) -> bytes:
    return (out / "checkpoint" / "model.safetensors").read_bytes()


def names(out: Path) -> set[str]:
    return {path.name for path in out.iterdir()}


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


def test_a_loss_that_is_not_finite_stops_with_epoch_and_step(
    images: Dataset, tiny: TrainingSettings, tmp_path: Path
) -> None:
    x = images.x_train.copy()
    x[:] = float("nan")
    with pytest.raises(OsaError, match=r"epoch 1, step 1: the loss is nan .*no learning rate repairs it") as caught:
        train_classifier(dataclasses.replace(images, x_train=x), tiny, tmp_path)
    assert caught.value.exit_code == 3


def test_a_later_loss_that_is_not_finite_may_be_due_to_the_rate(
    images: Dataset, tiny: TrainingSettings, tmp_path: Path
) -> None:
    wild = dataclasses.replace(tiny, lr=1e30)
    with pytest.raises(OsaError, match=r"step (?!1:)\d+: .*a rate below lr=1e\+30, or with norm=True"):
        train_classifier(images, wild, tmp_path)


@pytest.mark.parametrize(("power", "growth"), [(1, 3), (3, 7)])
@pytest.mark.parametrize("residual", [False, True], ids=["skipless", "residual"])
def test_polynomial_attention_without_norm_is_not_a_matter_of_the_rate(
    images: Dataset, tmp_path: Path, power: int, growth: int, residual: bool
) -> None:
    settings = TrainingSettings(attention="polynomial", power=power, residual=residual, depth=24, epochs=1, lr=1e-9)
    with pytest.raises(
        OsaError, match=rf"to the power {growth} in each layer, which no learning rate repairs"
    ) as caught:
        train_classifier(images, settings, tmp_path)
    assert "lr=" not in str(caught.value)
    assert "norm=True and residual=True" in str(caught.value)


def test_an_exponent_out_of_range_says_when(
    images: Dataset, tiny: TrainingSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ExponentRangeError("‖S‖ is 1e9.")

    monkeypatch.setattr("osa_runtime.models.SkiplessViT.forward", refuse)
    with pytest.raises(ExponentRangeError, match=r"stopped at epoch 1, step 1: ‖S‖ is 1e9\. .* start anew"):
        train_classifier(images, tiny, tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_that_is_absent_is_refused(images: Dataset, tiny: TrainingSettings, tmp_path: Path) -> None:
    with pytest.raises(MissingDependencyError, match="finds no CUDA device; use device='cpu'") as caught:
        train_classifier(images, dataclasses.replace(tiny, device="cuda"), tmp_path / "run")
    assert caught.value.exit_code == 3
    assert not (tmp_path / "run").exists()


def test_the_test_images_never_influence_the_weights(images: Dataset, tiny: TrainingSettings, tmp_path: Path) -> None:
    train_classifier(images, tiny, tmp_path / "one")
    train_classifier(dataclasses.replace(images, x_test=-images.x_test), tiny, tmp_path / "two")
    assert weights(tmp_path / "one") == weights(tmp_path / "two")


def test_every_image_is_seen_once_an_epoch_in_a_new_order(images: Dataset, tiny: TrainingSettings) -> None:
    trainer = Trainer(torch.nn.Linear(1, 1), images, tiny.resolved(images.image_size))
    first, second = (torch.cat([x for x, _ in trainer._batches(epoch)]) for epoch in (1, 2))
    assert not torch.equal(first, second)
    assert torch.equal(first.flatten().sort().values, second.flatten().sort().values)


def test_fixed_corrections_are_not_decayed_or_trained(images: Dataset, tiny: TrainingSettings) -> None:
    model = torch.nn.Linear(2, 2)
    model.weight.requires_grad_(False)
    trainer = Trainer(model, images, tiny.resolved(images.image_size))
    assert [len(group["params"]) for group in trainer.optimizers[0].param_groups] == [0, 1]


def test_muon_is_for_the_matrices_of_the_blocks_and_every_parameter_has_one_optimizer(images: Dataset) -> None:
    settings = TrainingSettings(depth=2, dim=8, heads=2, optimizer="muon").resolved(images.image_size)
    model = build_model(model_config(images, settings), settings)
    muon, adamw = make_optimizers(model, settings)
    mine, rest = ({id(p) for group in o.param_groups for p in group["params"]} for o in (muon, adamw))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert mine | rest == set(names)
    assert not mine & rest
    assert {names[p].split(".", 3)[3] for p in mine} == {
        "attention.project.weight", "attention.out.weight", "mlp.expand.weight", "mlp.contract.weight"
    }  # fmt: skip
