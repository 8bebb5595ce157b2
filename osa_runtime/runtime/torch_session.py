"""TorchScript and torch.export models in PyTorch. The session itself never imports torch: it is passed in."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from osa_runtime.errors import InputError, InterfaceError, RunError
from osa_runtime.interface import Interface
from osa_runtime.runtime.cuda_check import torch_cuda_problem
from osa_runtime.runtime.device import CPU, Device, LoadOptions, Placement
from osa_runtime.runtime.input_checks import Array
from osa_runtime.runtime.session import Session, Source
from osa_runtime.runtime.torch_files import import_torch, read_pt2, read_torchscript


class TorchSession(Session):
    def __init__(self, source: Source, options: LoadOptions) -> None:
        declared = source.declared
        self._torch = import_torch(source.path, source.format)
        self._device, placement = _place(self._torch, options)
        read = read_torchscript if source.format == "torchscript" else read_pt2
        self._module, found = read(self._torch, source.path, str(self._device))
        if declared is not None:
            _check_counts(declared, found, source)
        super().__init__(source, declared or found, placement)
        self._threads = options.threads
        # One call at a time: torch's threads work inside a call, and their number is set for the whole process.
        self._lock = threading.Lock()

    def _execute(self, arrays: dict[str, Array]) -> dict[str, Array]:
        tensors = [self._tensor(spec.name, arrays.get(spec.name)) for spec in self.inputs]
        module = self._module
        if module is None:
            raise RunError(f"The session of {self.path} is closed; load the model again.")
        try:
            with self._lock, self._torch.inference_mode(), self._thread_count():
                values = module(*tensors)
        except Exception as error:
            raise RunError(f"torch failed while it ran {self.path}: {_text(error)}") from error
        return self._named(values)

    def _tensor(self, name: str, array: Array | None) -> Any:
        if array is None:
            return None  # an optional input of TorchScript
        try:
            # torch takes neither read-only arrays nor negative strides
            return self._torch.from_numpy(np.require(array, requirements=["C", "W"])).to(str(self._device))
        except TypeError as error:
            raise InputError(f"Input {name} is of type {array.dtype}, which torch does not know; cast it.") from error

    def _named(self, values: Any) -> dict[str, Array]:
        found = list(values) if isinstance(values, (tuple, list)) else [values]
        if len(found) != len(self.outputs) or not all(isinstance(x, self._torch.Tensor) for x in found):
            raise RunError(
                f"{self.path} returned {[type(x).__name__ for x in found]}, expected the tensors "
                f"{', '.join(map(str, self.outputs))}; export the model again."
            )
        # A copy: a model may return one of its own weights, which callers must not change.
        return {spec.name: np.array(x.cpu().numpy()) for spec, x in zip(self.outputs, found, strict=True)}

    @contextlib.contextmanager
    def _thread_count(self) -> Iterator[None]:
        if self._threads is None:
            yield
            return
        before = self._torch.get_num_threads()
        self._torch.set_num_threads(self._threads)
        try:
            yield
        finally:
            self._torch.set_num_threads(before)

    def close(self) -> None:
        super().close()
        self._module = None


def _place(torch: Any, options: LoadOptions) -> tuple[Device, Placement]:
    wanted, provider, note = options.device, f"torch {torch.__version__}", None
    if wanted != CPU:
        problem = torch_cuda_problem(torch, wanted.index)
        if problem is None:
            return wanted, Placement(str(wanted), str(wanted), provider)
        note = options.fall_back(problem)
    return CPU, Placement(str(wanted), str(CPU), provider, note=note)


def _check_counts(declared: Interface, found: Interface, source: Source) -> None:
    """Compare the numbers of inputs and outputs; their names are the manifest's own in these formats."""
    least = len(found.inputs) - len(found.optional)
    if not least <= len(declared.inputs) <= len(found.inputs) or len(declared.outputs) != len(found.outputs):
        raise InterfaceError(
            f"The manifest of {source.path.parent} declares {len(declared.inputs)} inputs and "
            f"{len(declared.outputs)} outputs, but the model next to it has {len(found.inputs)} and "
            f"{len(found.outputs)}; export the model again."
        )


def _text(error: Exception) -> str:
    """The cause of an error: TorchScript puts it last, after two tracebacks, everything else first."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[-1] if "Traceback of TorchScript" in str(error) else lines[0]
