"""Data sets and the training loop behind ``osa train`` and ``osa data``.

    settings ─┐
    datasets ─┼─> run ──> loop ──> state (after each epoch) ──> checkpoint, metrics.json, curve.png
    fetch ────┘

The names below are imported on first use: listing or fetching data sets needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from osa_runtime.training.catalogue import data_folder, fetch_dataset
    from osa_runtime.training.datasets import Dataset, load_dataset
    from osa_runtime.training.loop import EpochRecord
    from osa_runtime.training.run import TrainingResult, train_classifier
    from osa_runtime.training.seeds import SeedsResult, train_seeds
    from osa_runtime.training.sequences import SequenceDataset, load_sequences
    from osa_runtime.training.settings import TrainingSettings

__all__ = [
    # data
    "Dataset",
    "data_folder",
    "fetch_dataset",
    "load_dataset",
    "SequenceDataset",
    "load_sequences",
    # training
    "EpochRecord",
    "SeedsResult",
    "TrainingResult",
    "TrainingSettings",
    "train_classifier",
    "train_seeds",
]

_HOME = {
    "Dataset": "datasets",
    "data_folder": "catalogue",
    "fetch_dataset": "catalogue",
    "load_dataset": "datasets",
    "SequenceDataset": "sequences",
    "load_sequences": "sequences",
    "EpochRecord": "loop",
    "SeedsResult": "seeds",
    "TrainingResult": "run",
    "TrainingSettings": "settings",
    "train_classifier": "run",
    "train_seeds": "seeds",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
