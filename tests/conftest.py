"""Fixtures that tests of several parts share."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Before torch is imported: test processes with a thread per core each would fight over the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

CHECKOUT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def checkout() -> Path:
    return CHECKOUT


@pytest.fixture(scope="session")
def installed_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as a user gets it: built as a wheel and unpacked.

    Built from a copy of the checkout, where a build folder from earlier cannot leak old files into the wheel.
    """
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, source)
    for name in ("osa_runtime", "cli", "exporters"):
        if (CHECKOUT / name).is_dir():
            shutil.copytree(CHECKOUT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    script = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    command = [sys.executable, "-c", script, str(source / "dist")]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    unpacked = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(source / "dist" / built.stdout.split()[-1]) as wheel:
        wheel.extractall(unpacked)
    return unpacked


@pytest.fixture(scope="session", autouse=True)
def made_exports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The processes of one run share their exports."""
    from made_once import kept_in

    base = tmp_path_factory.getbasetemp()
    with kept_in((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "exports"):
        yield


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """``exported("vit", "onnx")`` is the folder of a small exported model, which nobody may change."""
    from small_models import export_small

    home = tmp_path_factory.mktemp("exported")
    return lambda model, kind: export_small(home, model, kind)
