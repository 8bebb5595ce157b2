"""Conversion between the arrays of verification and the tensors of torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from osa_runtime.errors import InputError, OsaError, RunError
from osa_runtime.runtime.torch_session import cause_of
from osa_runtime.verification.inside.model_parts import Array


def to_tensor(array: Array) -> Tensor:
    # torch takes neither read-only arrays nor negative strides
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def to_array(tensor: Tensor) -> Array:
    """A copy, so that later changes of the model's memory do not show."""
    return np.array(tensor.numpy())


def ordered(feeds: Mapping[str, Array], names: Sequence[str]) -> list[Tensor]:
    if set(feeds) != set(names):
        raise InputError(f"The feeds are {sorted(feeds)}, but the model's inputs are {list(names)}; pass each of them.")
    return [to_tensor(feeds[name]) for name in names]


def check_known(wanted: Sequence[str], known: Sequence[str], path: Path) -> None:
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise InputError(f"{path} shows no part called {', '.join(unknown)}; it shows {', '.join(known) or 'none'}.")


@contextlib.contextmanager
def running(path: Path, what: str) -> Iterator[None]:
    """Run without gradients; errors of torch become a RunError that names the part."""
    try:
        with torch.inference_mode():
            yield
    except OsaError:
        raise
    except Exception as error:
        raise RunError(f"torch failed while it ran {what} of {path}: {cause_of(error)}") from error
