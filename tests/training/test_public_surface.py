from __future__ import annotations

import subprocess
import sys

import pytest

import osa_runtime.training as training


@pytest.mark.parametrize("name", training.__all__)
def test_every_public_name_exists(name: str) -> None:
    assert getattr(training, name).__name__ == name


def test_the_facade_lists_exactly_what_it_can_give() -> None:
    assert sorted(training.__all__) == sorted(training._HOME)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        training.nonsense  # noqa: B018


def test_fetching_and_listing_need_no_torch() -> None:
    program = (
        "import sys, osa_runtime.training.catalogue, osa_runtime.training.datasets; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
