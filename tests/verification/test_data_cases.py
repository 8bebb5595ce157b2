"""Real data goes through the preprocessing that the artifact records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from osa_runtime.errors import InputError
from osa_runtime.interface import Interface, TensorSpec
from osa_runtime.pixels import Standardisation
from osa_runtime.runtime.session import load
from osa_runtime.training import load_dataset
from osa_runtime.verification.cases import data_cases

IMAGES = (TensorSpec("images", "float32", ("batch", 1, 8, 8)),)


def test_the_recorded_preprocessing_is_applied(deep: Callable[..., Path]) -> None:
    dataset = load_dataset("digits")
    with load(deep("vit")) as session:
        own = data_cases("digits", session, Interface(IMAGES, pixels={"images": dataset.standardisation}))
        other = Standardisation((0.0,), (16.0,), (0.0, 16.0))
        recorded = data_cases("digits", session, Interface(IMAGES, pixels={"images": other}))[0].feeds["images"]
    assert len(own) == 8
    assert all(case.sizes == {"batch": 32} for case in own)
    assert np.array_equal(own[0].feeds["images"][0], dataset.x_test[0])
    assert recorded.min() == 0.0
    assert recorded.max() == 1.0


def test_models_that_take_something_else_are_named(deep: Callable[..., Path]) -> None:
    wide = Interface((TensorSpec("images", "float32", ("batch", 3, 8, 8)),))
    with load(deep("vit")) as session, pytest.raises(InputError, match="channels"):
        data_cases("digits", session, wide)


def test_inputs_of_sequences_in_a_file(deep: Callable[..., Path], tmp_path: Path) -> None:
    ids = np.random.default_rng(0).integers(0, 11, (40, 7))
    np.savez(tmp_path / "own.npz", tokens=ids, mask=np.ones((40, 7), bool), y=np.arange(40) % 3)
    with load(deep("encoder")) as session:
        interface = session.interface
        (case,) = data_cases(str(tmp_path / "own.npz"), session, interface)
    assert case.sizes == {"batch": 32, "tokens": 7}
