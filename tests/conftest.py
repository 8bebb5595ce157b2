"""Fixtures that tests of several parts share."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from numpy.typing import NDArray

# Before torch is imported: test processes with a thread per core each would fight over the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests leave nothing in the user's cache, and load what they exported; those of the cache have a folder of their own.
os.environ["OSA_MODEL_CACHE"] = "off"

# A shell makes jobs in the background ignore the interrupt, and what tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# On a busy machine any example may take long; how long is not what properties are about.
settings.register_profile("any time", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any time")

CHECKOUT = Path(__file__).resolve().parent.parent


# Fixtures that export, start a server or build a wheel: whatever needs one of them is slow.
SLOW = {"exported", "deep", "installed_copy"}


@pytest.hookimpl(tryfirst=True)  # before -m is applied
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("OSA_REQUIRE_GPU"):
        from osa_runtime.runtime.device import driver_loads

        if not driver_loads():
            pytest.exit("`make test-gpu` needs a CUDA device, and this machine has no NVIDIA driver.", returncode=3)
    for item in items:
        if SLOW & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


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


@pytest.fixture(autouse=True)
def threads_as_they_were() -> Iterator[None]:
    """The number of torch's threads belongs to the process: a test that leaves another one slows all that follow."""
    yield
    torch = sys.modules.get("torch")  # None where a test hides it
    if torch is not None and hasattr(torch, "set_num_threads"):
        left = torch.get_num_threads()
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        assert left == torch.get_num_threads(), f"{left} threads of torch are left"


@pytest.fixture(autouse=True)
def little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the wide sweep little time; tests of its own show what it does with more."""
    from osa_runtime.verification import cases

    monkeypatch.setattr(cases, "SECONDS", 0.1)


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """``exported("vit", "onnx")`` is the folder of a small exported model, which nobody may change."""
    from small_models import export_small

    home = tmp_path_factory.mktemp("exported")
    return lambda model, kind: export_small(home, model, kind)


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a data set called mnist: ten brightnesses."""
    random, folder = np.random.RandomState(0), tmp_path_factory.mktemp("data")

    def part(count: int) -> tuple[NDArray[Any], NDArray[Any]]:
        y = np.arange(count) % 10
        return (random.rand(count, 28, 28) * 60 + 19 * y[:, None, None]).astype(np.uint8), y

    (x, y), (x_test, y_test) = part(300), part(100)
    np.savez(folder / "mnist.npz", x=x, y=y, x_test=x_test, y_test=y_test)
    return folder
