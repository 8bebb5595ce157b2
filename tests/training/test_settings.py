from __future__ import annotations

import math
from typing import Any

import pytest

from osa_runtime.environment import usable_cores
from osa_runtime.errors import ConfigError
from osa_runtime.training import TrainingSettings
from osa_runtime.training.settings import default_patch_size


@pytest.mark.parametrize(
    ("field", "value"),
    [
        pytest.param("epochs", 0, id="no epochs"),
        pytest.param("batch_size", -4, id="negative batch"),
        pytest.param("depth", 0, id="no layers"),
        pytest.param("lr", 0.0, id="zero rate"),
        pytest.param("lr", math.nan, id="NaN rate"),
        pytest.param("clip", math.inf, id="infinite clip"),
        pytest.param("weight_decay", -0.1, id="negative decay"),
        pytest.param("seed", -1, id="negative seed"),
        pytest.param("patch_size", 0, id="empty patch"),
        pytest.param("device", "tpu", id="unknown device"),
    ],
)
def test_a_bad_value_is_named_by_its_argument(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"^{field} is {value}, expected"):
        TrainingSettings(**{field: value})


@pytest.mark.parametrize(
    ("size", "patch"),
    [((8, 8), 2), ((28, 28), 4), ((32, 32), 4), ((2, 2), 1), ((7, 5), 1), ((224, 224), 28)],
    ids=str,
)
def test_the_default_patch_leaves_4_to_64_tokens(size: tuple[int, int], patch: int) -> None:
    assert default_patch_size(size) == patch


@pytest.mark.parametrize("size", [(97, 97), (1, 3)], ids=["prime sides", "almost no pixels"])
def test_images_without_a_fitting_patch_ask_for_one(size: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="patch_size="):
        default_patch_size(size)


def test_defaults_follow_the_depth() -> None:
    shallow, deep = (TrainingSettings(depth=depth).resolved((8, 8)) for depth in (8, 32))
    assert (shallow.slope, shallow.lr) == (0.5, 1e-3)
    assert (deep.slope, deep.lr) == (0.75, 3e-4)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, "muon", id="skipless osa"),
        pytest.param({"depth": 17}, "adamw", id="deep"),
        pytest.param({"norm": True}, "adamw", id="norm"),
        pytest.param({"residual": True}, "adamw", id="skips"),
        pytest.param({"attention": "softmax"}, "adamw", id="softmax"),
        pytest.param({"optimizer": "adamw"}, "adamw", id="chosen"),
    ],
)
def test_the_optimizer_is_the_one_that_was_tried_for_the_model(fields: dict[str, Any], expected: str) -> None:
    assert TrainingSettings(**fields).resolved((8, 8)).optimizer == expected


def test_chosen_values_stay() -> None:
    settings = TrainingSettings(optimizer="adamw", lr=0.1, slope=0.9, patch_size=4, threads=2)
    assert settings.resolved((8, 8)) == settings


def test_small_models_train_with_one_thread() -> None:
    assert TrainingSettings().resolved((8, 8)).threads == 1
    assert TrainingSettings(dim=512, batch_size=256).resolved((32, 32)).threads == usable_cores()
