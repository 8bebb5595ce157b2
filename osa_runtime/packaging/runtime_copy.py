"""A copy of the modules that run a model inside Triton, for servers in which this package is not installed.

The copy lies beside the model, so that a model runs on the very code it was packed with, whatever is installed there,
and two models of different age run side by side. It needs numpy and ONNX Runtime.
"""

from __future__ import annotations

import shutil
from modulefinder import ModuleFinder
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
MODEL = f"{PACKAGE.name}.packaging.triton_model"
PROBE = PACKAGE / "runtime" / "provider_probe.py"  # a script that is run, not imported
FACADE = ("evaluation", "models", "nn", "ops", "verification")  # what osa_runtime/__init__.py imports on demand
LEFT_OUT = ("numpy", f"{PACKAGE.name}.runtime.torch_session", *(f"{PACKAGE.name}.{part}" for part in FACADE))


def runtime_files() -> list[Path]:
    """What the model imports, directly or not, inside of functions too. Only ONNX models are packed, so no torch."""
    finder = ModuleFinder([str(PACKAGE.parent)], excludes=LEFT_OUT)
    finder.import_hook(MODEL)
    ours = [module for name, module in finder.modules.items() if name.split(".")[0] == PACKAGE.name]
    return sorted([PROBE, *(Path(vars(module)["__file__"]) for module in ours)])


def copy_runtime(folder: Path) -> None:
    """Write ``folder/osa_runtime``."""
    for file in runtime_files():
        target = folder / file.relative_to(PACKAGE.parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
