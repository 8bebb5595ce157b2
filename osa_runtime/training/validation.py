"""Holding a share of the training data out, to validate with."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from osa_runtime.errors import DataError
from osa_runtime.training.datasets import Dataset
from osa_runtime.training.sequences import SequenceDataset

Data = Dataset | SequenceDataset


def hold_out(data: Data, share: float) -> tuple[Data, Data | None]:
    """The data without a share of its training samples, and these as the test samples of a second one.

    The same samples for every seed, so that seeds can be compared.
    """
    if not share:
        return data, None
    count = len(data.y_train)
    order = np.random.RandomState(1).permutation(count)
    held_out = max(1, round(share * count))
    if held_out >= count:
        raise DataError(f"validation={share:g} leaves none of the {count} training samples to train on.")
    arrays: dict[str, Any] = {
        f.name: getattr(data, f.name) for f in dataclasses.fields(data) if f.name.endswith("_train")
    }
    kept = dataclasses.replace(data, **{name: array[order[held_out:]] for name, array in arrays.items()})
    tests = {name.replace("_train", "_test"): array[order[:held_out]] for name, array in arrays.items()}
    return kept, dataclasses.replace(kept, **tests)
