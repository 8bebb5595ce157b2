"""A copy of the part of this package that runs models, for servers in which it is not installed.

The copy lies beside the model, so that a model runs on the very code it was packed with, whatever is installed there,
and two models of different age run side by side. It needs numpy and ONNX Runtime.
"""

from __future__ import annotations

import shutil
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
PARTS = ("packaging", "runtime", "serving")  # none of them ever imports torch


def copy_runtime(folder: Path) -> None:
    """Write ``folder/osa_runtime``."""
    files = [*PACKAGE.glob("*.py"), *(file for part in PARTS for file in (PACKAGE / part).rglob("*.py"))]
    for file in files:
        target = folder / PACKAGE.name / file.relative_to(PACKAGE)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
