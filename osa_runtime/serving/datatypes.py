"""The protocol's names of element types beside numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np

NUMPY_NAMES = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "float16",
    "FP32": "float32",
    "FP64": "float64",
}
# Tensors travel in little-endian order whatever the machine.
DTYPES: dict[str, np.dtype[Any]] = {name: np.dtype(numpy).newbyteorder("<") for name, numpy in NUMPY_NAMES.items()}
PROTOCOL_NAMES = {numpy: name for name, numpy in NUMPY_NAMES.items()}
NAME_OF_DTYPE: dict[np.dtype[Any], str] = {np.dtype(numpy): name for name, numpy in NUMPY_NAMES.items()}
BYTES = "BYTES"
