"""The server that hostile clients attack; every attack is watched by a canary."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from canary import Target
from rest_attack import Exported


@pytest.fixture(scope="module")
def running(exported: Exported) -> Iterator[Target]:
    with Target(exported("vit", "onnx"), "--timeout", "3", "--max-connections", "40") as target:
        yield target


@pytest.fixture(scope="module")
def open_ended(exported: Exported, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """The same model next to one that takes batches of any size, so that large bodies can be valid."""
    home = tmp_path_factory.mktemp("open-ended")
    shutil.copytree(exported("vit", "onnx"), home / "vit-onnx")
    shutil.copytree(home / "vit-onnx", home / "large")
    with Target(home / "vit-onnx", home / "large", "--max-batch", "1000000") as target:
        yield target


@pytest.fixture
def target(running: Target) -> Iterator[Target]:
    with running.watched():
        yield running


@pytest.fixture
def large(open_ended: Target) -> Iterator[Target]:
    with open_ended.watched():
        yield open_ended
