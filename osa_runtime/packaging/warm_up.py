"""Inputs that Triton runs before it reports a model ready, so that no client waits for the first run.

They are raw bytes in the folder ``warmup``, one file per input. Zeros or random bytes, which Triton could generate
itself, would be unknown ids and masks without any real token.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLDER = "warmup"

Feeds = dict[str, NDArray[Any]]


def write_samples(folder: Path, feeds: Feeds) -> dict[str, str]:
    """Write the file of each input, named by number: an input's name need not be a valid file name."""
    folder.mkdir()
    names = {name: f"input{number}" for number, name in enumerate(feeds)}
    for name, file in names.items():
        array = feeds[name]
        (folder / file).write_bytes(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())
    return names
