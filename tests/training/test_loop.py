"""The loop itself: what stops it, the order of images, and what the optimizers train."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from osa_runtime.errors import (
    ExponentRangeError,
    MissingDependencyError,
    OsaError,
)
from osa_runtime.training import Dataset, TrainingSettings, train_classifier
from osa_runtime.training.loop import Trainer, make_optimizers
from osa_runtime.training.model import build_model, model_config
from training_runs import weights

pytestmark = pytest.mark.slow


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


def test_a_step_changes_alpha_by_the_proportion_by_which_it_changes_weights(images: Dataset) -> None:
    settings = TrainingSettings(depth=2, dim=16, heads=2, optimizer="adamw", lr=1e-3).resolved(images.image_size)
    model = build_model(model_config(images, settings), settings)
    (adamw,) = make_optimizers(model, settings)
    rates = {id(p): group["lr"] for group in adamw.param_groups for p in group["params"]}
    alphas = [parameter for name, parameter in model.named_parameters() if name.endswith("alpha")]
    assert len(alphas) == 2
    start = 0.2 / 16  # α starts at, for up to 16 tokens
    assert [rates.pop(id(alpha)) / start for alpha in alphas] == pytest.approx([1e-3 * 16**0.5] * 2)
    assert set(rates.values()) == {1e-3}


def test_behind_a_normalisation_alpha_has_the_rate_of_the_weights(images: Dataset) -> None:
    settings = TrainingSettings(depth=1, dim=16, heads=2, norm=True, lr=1e-3).resolved(images.image_size)
    model = build_model(model_config(images, settings), settings)
    assert {group["lr"] for optimizer in make_optimizers(model, settings) for group in optimizer.param_groups} == {1e-3}
