"""Ray, alone in a network that ends at this machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from loopback_network import NoNamespace, loopback_network
from ray_installation import NotInstalled, ray_python


@pytest.fixture(scope="session")
def python_with_ray(checkout: Path) -> Path:
    try:
        return ray_python(checkout)
    except NotInstalled as error:
        pytest.skip(f"ray cannot be installed: {error}")


@pytest.fixture
def alone() -> Iterator[None]:
    """Ray opens ports on every interface, so there shall be none but loopback."""
    try:
        with loopback_network():
            yield
    except NoNamespace as error:
        pytest.skip(f"Ray opens ports to other machines, and no network namespace can be made: {error}")


@pytest.fixture
def ray_environment() -> Iterator[dict[str, str]]:
    """Ray's files in a folder of their own, with a short name: the sockets in it may have 107 characters."""
    home = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    own = {"HOME": home, "RAY_TMPDIR": home, "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1"}
    yield os.environ | own | {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    shutil.rmtree(home, ignore_errors=True)
