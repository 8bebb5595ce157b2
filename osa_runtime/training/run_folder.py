"""The files of a run's folder, and the state from which a killed run continues.

    OUT/state.pt        while the run is under way: weights, optimizer, schedule, random numbers, history
    OUT/checkpoint/     when it is finished: config.json and model.safetensors of the last epoch
    OUT/metrics.json    when it is finished
    OUT/curve.png       when it is finished

``state.pt`` is replaced in one step after every epoch and removed last of all, so that at whatever moment the run
is killed, the folder shows how far it came.
"""

from __future__ import annotations

import dataclasses
import io
import json
import pickle
import platform
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from osa_runtime.atomic import atomic_file
from osa_runtime.environment import installed_version
from osa_runtime.errors import CheckpointError, InputError, StorageError
from osa_runtime.plotting import logarithmic, write_figure
from osa_runtime.recognition import CHECKPOINT_FOLDER, STATE_FILE
from osa_runtime.training.datasets import Dataset
from osa_runtime.training.loop import EpochRecord
from osa_runtime.training.sequences import SequenceDataset
from osa_runtime.training.settings import TrainingSettings

_FORMAT = 2


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """The paths of one run."""

    path: Path

    @property
    def state(self) -> Path:
        return self.path / STATE_FILE

    @property
    def checkpoint(self) -> Path:
        return self.path / CHECKPOINT_FOLDER

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.json"

    @property
    def curve(self) -> Path:
        return self.path / "curve.png"

    @property
    def results(self) -> tuple[Path, ...]:
        return self.checkpoint, self.metrics, self.curve

    def refuse_finished(self) -> None:
        """Refuse to overwrite results: only an unfinished run, or an empty folder, may be trained into."""
        present = [path.name for path in self.results if path.exists()]
        if present and not self.state.exists():
            raise InputError(
                f"{self.path} holds a finished run ({', '.join(present)}); choose another folder, "
                "or train anew with force=True, which replaces it."
            )

    def remove_results(self) -> None:
        for path in self.results:
            _remove(path)

    def remove_state(self) -> None:
        _remove(self.state)


def save_state(path: Path, identity: dict[str, Any], content: dict[str, Any]) -> None:
    """Write the state of a run; ``identity`` is what must be equal when the run is resumed."""
    buffer = io.BytesIO()
    torch.save({"format": _FORMAT, "identity": identity, **content}, buffer)
    # Through memory, because torch reports a full disk as an unspecific RuntimeError.
    with atomic_file(path) as temporary:
        temporary.write_bytes(buffer.getbuffer())


def load_state(path: Path, identity: dict[str, Any]) -> dict[str, Any]:
    """Read the state of a run, after checking that it belongs to a run with this ``identity``."""
    state = _read(path)
    changes = _differences(state["identity"], identity)
    if changes:
        raise InputError(
            f"{path.parent} holds an unfinished run with other settings: {'; '.join(changes)}. "
            "Give the same settings to continue it, choose another folder, or start anew with force=True."
        )
    return state


def damaged_state(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(f"{path} cannot be read as the state of a run ({reason}); start anew with force=True.")


def _read(path: Path) -> dict[str, Any]:
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise damaged_state(path, type(error).__name__) from error
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        raise damaged_state(path, f"expected format {_FORMAT}")
    return state


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    return [f"{name.replace('_', '-')} was {before.get(name)} and is now {now.get(name)}" for name in names]


def _remove(path: Path) -> None:
    try:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"Cannot remove {path}: {error.strerror or error}; remove it by hand.") from error


COLOURS = {"train": "#9aa5b1", "test": "#0b6e99"}


def write_metrics(
    path: Path,
    settings: TrainingSettings,
    data: Dataset | SequenceDataset,
    history: Sequence[EpochRecord],
    chosen: EpochRecord,
    parameters: int,
) -> None:
    content = {
        "format": 1,
        "settings": settings.as_dict(),
        "data": _describe(data),
        "parameters": parameters,
        "chosen_epoch": chosen.epoch,
        "test_accuracy": chosen.test_accuracy,
        "test_loss": chosen.test_loss,
        "validation_accuracy": chosen.validation_accuracy,
        "seconds": round(sum(record.seconds for record in history), 3),
        "epochs": [dataclasses.asdict(record) for record in history],
        "versions": _versions(),
        "threads": torch.get_num_threads(),
    }
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")


def _describe(data: Dataset | SequenceDataset) -> dict[str, Any]:
    """The data, and the standardisation of pixels that the model expects; None for sequences."""
    return {
        "name": data.name,
        "sha256": data.sha256,
        "train_images": len(data.y_train),
        "test_images": len(data.y_test),
        "classes": data.classes,
        "class_names": list(data.class_names),
        "preprocessing": None if data.standardisation is None else data.standardisation.as_dict(),
    }


def _versions() -> dict[str, str]:
    packages = {name: installed_version(name) for name in ("osa-runtime", "torch", "numpy", "scikit-learn")}
    return {"python": platform.python_version(), **{name: found for name, found in packages.items() if found}}


def draw_curve(history: Sequence[EpochRecord], title: str, path: Path) -> None:
    """Write loss and accuracy against epochs, side by side, as PNG or SVG."""

    def draw(figure: Any) -> None:
        loss, accuracy = figure.subplots(1, 2)
        _plot(loss, history, "loss", 1.0)
        _plot(accuracy, history, "accuracy", 100.0)
        loss.set_title(f"Cross-entropy · last test {history[-1].test_loss:.3f}")
        accuracy.set_title(f"Accuracy · last test {100 * history[-1].test_accuracy:.2f} %")
        accuracy.yaxis.set_major_formatter("{x:g} %")
        low, high = loss.dataLim.intervaly
        if low > 0 and high / low > 10:  # only then does a logarithmic axis show more of the end, with enough ticks
            logarithmic(loss.yaxis, subs=(1.0,) if high / low > 100 else (1.0, 2.0, 5.0))
        figure.suptitle(title, fontsize=11, x=0.01, ha="left", fontweight="bold")

    write_figure(path, (9, 3.8), draw)


def _plot(axes: Any, history: Sequence[EpochRecord], quantity: str, factor: float) -> None:
    for part, colour in COLOURS.items():
        values = [factor * getattr(record, f"{part}_{quantity}") for record in history]
        axes.plot([record.epoch for record in history], values, color=colour, lw=2, marker="o", ms=3.5, label=part)
    axes.set_xlabel("epoch")
    axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
    axes.grid(visible=False, axis="x")
    axes.legend()
