"""The layers stay apart: the contracts hold, and what must start light does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "onnx", "onnxruntime", "sklearn", "matplotlib", "scipy", "numpy")


def heavy_imports_of(module: str) -> set[str]:
    script = f"import sys, {module}; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    return set(child.stdout.split())


@pytest.mark.parametrize("module", ["osa_runtime", "osa_runtime.cli.main", "osa_runtime.runtime"])
def test_starts_without_heavy_imports(module: str) -> None:
    assert heavy_imports_of(module) == set()


def test_runtime_works_where_torch_cannot_be_imported() -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from osa_runtime.runtime import probe_provider\n"
        "assert probe_provider('CPUExecutionProvider').loads"
    )
    child = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr


def test_import_contracts_hold(checkout: Path, installed_copy: Path) -> None:
    # import-linter puts the current folder first on the path, so it reads the copy that has cli/ and exporters/ inside
    command = [
        Path(sys.executable).with_name("lint-imports"),
        "--no-logo",
        "--no-cache",
        "--config",
        checkout / "pyproject.toml",
    ]
    child = subprocess.run(command, cwd=installed_copy, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stdout + child.stderr
