"""The arguments of the application: what is taken, and what is refused with a reason."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from osa_runtime.errors import ConfigError, InputError
from osa_runtime.serving_ray.options import RayOptions


def test_settings_carry_every_argument() -> None:
    options = RayOptions.read({"artifacts": "/m/digits", "max_batch": 8, "max_delay_ms": 2, "threads": 3, "drain": 5})
    settings = options.settings()
    assert settings.artifacts == (Path("/m/digits"),)
    assert settings.batching.max_batch == 8
    assert settings.batching.max_delay == pytest.approx(0.002)
    assert (settings.model_threads, settings.drain) == (3, 5)


@pytest.mark.parametrize(("given", "expected"), [(2, (2, 2)), ("3", (3, 3)), ("1:4", (1, 4)), ("2:2", (2, 2))], ids=str)
def test_replicas_are_a_number_or_a_range(given: Any, expected: tuple[int, int]) -> None:
    assert RayOptions(artifacts=("/m",), replicas=given).replica_range() == expected


@pytest.mark.parametrize("given", [0, -1, "4:1", "0:2", "two", "1:", "", 1.5], ids=str)
def test_other_replicas_are_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="expected a number from 1 on, or MIN:MAX"):
        RayOptions(artifacts=("/m",), replicas=given)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param({"artefacts": ["/m"]}, "Unknown arguments: artefacts", id="misspelt"),
        pytest.param({"artifacts": ["runs/digits"]}, "runs/digits is relative", id="relative artifact"),
        pytest.param({"repository": "models"}, "models is relative", id="relative repository"),
        pytest.param({"artifacts": ["/m"], "token_file": "token"}, "token is relative", id="relative token"),
        pytest.param({"artifacts": ["/m"], "max_batch": 0}, "max_batch is 0", id="no batch"),
        pytest.param({"artifacts": ["/m"], "threads": "2"}, "threads is '2'", id="text for a number"),
        pytest.param({"artifacts": ["/m"], "max_delay_ms": "2"}, "max_delay_ms is '2'", id="text for milliseconds"),
        pytest.param({"artifacts": ["/m"], "timeout": math.nan}, "timeout is nan", id="no number"),
        pytest.param({"artifacts": ["/m"], "drain": math.inf}, "drain is inf", id="endless"),
        pytest.param({"artifacts": ["/m"], "downscale_delay": -1}, "downscale_delay is -1", id="negative"),
        pytest.param({"artifacts": ["/m"], "target_ongoing": 0}, "target_ongoing is 0", id="no target"),
        pytest.param({"artifacts": ["/m"], "target_ongoing": "2"}, "wrong type", id="text for the target"),
        pytest.param({"artifacts": ["/m"], "packed": {"m/1": "0"}}, "there is none", id="hashes of nothing"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RayOptions.read(arguments)


def test_nothing_to_serve_is_refused() -> None:
    with pytest.raises(InputError, match="nothing to serve"):
        RayOptions.read({})


def test_the_token_comes_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("sixteen-characters\n")
    options = RayOptions.read({"artifacts": ["/m"], "token_file": str(tmp_path / "token")})
    assert options.settings().token == "sixteen-characters"
    assert "sixteen" not in repr(options)
