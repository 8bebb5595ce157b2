"""Models that can be evaluated: artifacts and model files of any format, and checkpoints."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from osa_runtime.artifact import MANIFEST_FILE, TensorSpec
from osa_runtime.environment import missing_package
from osa_runtime.errors import InputError
from osa_runtime.interface import Interface
from osa_runtime.pixels import Standardisation
from osa_runtime.recognition import CHECKPOINT_FOLDER, CONFIG_FILE
from osa_runtime.runtime.device import DeviceOptions
from osa_runtime.runtime.input_checks import Array
from osa_runtime.runtime.session import load

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Classifier:
    """A model that returns logits; ``run`` takes and returns arrays by name."""

    name: str
    interface: Interface
    run: Callable[[Mapping[str, Array]], Mapping[str, Array]]

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.interface.inputs

    def standardisation(self, name: str) -> Standardisation | None:
        return self.interface.pixels.get(name)

    def logits(self, feeds: Mapping[str, Array], rows: int) -> Array:
        outputs = self.run(feeds)
        name = "logits" if "logits" in outputs else next(iter(outputs)) if len(outputs) == 1 else None
        if name is None:
            raise InputError(f"{self.name} returns {', '.join(outputs)}, and it is not clear which of them are logits.")
        found = outputs[name]
        if found.ndim != 2 or len(found) != rows or found.shape[1] < 2:
            raise InputError(
                f"{self.name} returns {name} of shape {found.shape} for {rows} samples; expected a number for each of "
                f"at least two classes, ({rows}, classes)."
            )
        return found


@contextlib.contextmanager
def open_classifier(path: Path, where: DeviceOptions) -> Iterator[Classifier]:
    if path.is_dir() and not (path / MANIFEST_FILE).exists() and _holds_checkpoint(path):
        yield _checkpoint(path, where)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the device makes no difference to an accuracy
        session = load(path, where.device, threads=where.threads, allow_fallback=where.allow_fallback)
    with session:
        yield Classifier(str(path), session.interface, session.run)


def _holds_checkpoint(path: Path) -> bool:
    return (path / CONFIG_FILE).exists() or (path / CHECKPOINT_FOLDER / CONFIG_FILE).exists()


def _checkpoint(path: Path, where: DeviceOptions) -> Classifier:
    try:
        import torch

        from osa_runtime.models.checkpoint import checkpoint_folder, load_checkpoint, read_standardisation
    except ModuleNotFoundError as error:
        otherwise = ", or evaluate what was exported from it"
        raise missing_package(f"The checkpoint {path}", error.name, "export", otherwise) from error
    if where.device != "cpu":
        raise InputError(f"{path} is a checkpoint, which is evaluated on the cpu; leave the device {where.device} out.")
    model, recorded = load_checkpoint(path), read_standardisation(checkpoint_folder(path))
    interface = model.interface()

    def run(feeds: Mapping[str, Array]) -> dict[str, Array]:
        with torch.inference_mode():
            return {"logits": model(*(torch.from_numpy(feeds[spec.name]) for spec in interface.inputs)).numpy()}

    pixels = {interface.inputs[0].name: recorded} if recorded is not None else {}
    return Classifier(str(path), replace(interface, pixels=pixels), run)
