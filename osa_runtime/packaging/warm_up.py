"""Inputs that Triton runs before it calls a model ready, so that no client pays for the first run.

They lie as raw bytes in the folder ``warmup``, one file per input. Zeros or random bytes, which Triton could make
itself, would be ids that the model does not know and masks without any token.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLDER = "warmup"

Feeds = dict[str, NDArray[Any]]


def write_samples(folder: Path, feeds: Feeds) -> dict[str, str]:
    """The file of each input, by number: the name of an input need not be one that a file can have."""
    folder.mkdir()
    names = {name: f"input{number}" for number, name in enumerate(feeds)}
    for name, file in names.items():
        array = feeds[name]
        (folder / file).write_bytes(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())
    return names
