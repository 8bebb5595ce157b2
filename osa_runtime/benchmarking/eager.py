"""The checkpoint in eager PyTorch, as the contender to be compared with. The only module here that imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from osa_runtime.artifact import sha256
from osa_runtime.errors import DeviceError, InputError, RunError
from osa_runtime.exporters.eager import rounding_depth
from osa_runtime.models import load_checkpoint
from osa_runtime.models.checkpoint import WEIGHTS_FILE, checkpoint_folder
from osa_runtime.runtime.device import parse_device, torch_cuda_problem
from osa_runtime.runtime.torch_session import cause_of, torch_threads

Array = NDArray[Any]


class EagerModel:
    """A checkpoint that takes and returns arrays, like a session: the same copies are part of the time of both."""

    def __init__(self, checkpoint: Path, device: str, threads: int, half: bool = False) -> None:
        place = parse_device(device)
        if place.kind == "cuda":
            problem = torch_cuda_problem(torch, place.index)
            if problem:
                raise DeviceError(f"Eager PyTorch cannot run on {place}: {problem}")
        model = load_checkpoint(checkpoint)
        self.checkpoint, self._device, self._threads = checkpoint, str(place), threads
        self._model = (model.half() if half else model).to(self._device)

    @property
    def depth(self) -> int:
        """The number of matrices in sequence, as the export counts them for its tolerance."""
        return rounding_depth(self._model)

    @property
    def weights_hash(self) -> str:
        return sha256(checkpoint_folder(self.checkpoint) / WEIGHTS_FILE)

    def run(self, feeds: Mapping[str, Array], order: Sequence[str]) -> list[Array]:
        """The outputs, for inputs in the order of ``order``."""
        try:
            with torch.inference_mode(), torch_threads(self._threads):
                outputs = self._model(*(self._tensor(feeds[name]) for name in order if name in feeds))
        except InputError:
            raise
        except Exception as error:
            raise RunError(
                f"The checkpoint {self.checkpoint} fails on the inputs of the artifact ({cause_of(error)[:300]}); "
                "is it the one that was exported?"
            ) from error
        return [outputs.cpu().numpy()] if isinstance(outputs, Tensor) else [x.cpu().numpy() for x in outputs]

    def _tensor(self, array: Array) -> Tensor:
        return torch.from_numpy(np.require(array, requirements=["C", "W"])).to(self._device)
