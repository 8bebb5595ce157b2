"""The arguments of the application: what is taken, and what is refused with a reason."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from osa_runtime.errors import ConfigError
from osa_runtime.serving.settings import BatchSettings, Limits, ServerSettings
from osa_runtime.serving_ray.settings import RaySettings

SERVER = {"artifacts": ["/m/digits"]}


def test_arguments_are_the_fields_of_the_settings() -> None:
    batching = {"max_batch": 8, "max_delay": 2, "timeout": "1e-5"}  # which is a word in YAML
    server = SERVER | {"batching": batching, "limits": {"body": 1000}, "threads": 3, "trusted_keys": ["/k"]}
    settings = RaySettings.read({"server": server, "replicas": "1:4", "token_file": "/t", "target_ongoing": None})
    assert settings == RaySettings(
        ServerSettings(
            artifacts=(Path("/m/digits"),),
            threads=3,
            trusted_keys=(Path("/k"),),
            batching=BatchSettings(max_batch=8, max_delay=2, timeout=1e-5),
            limits=Limits(body=1000),
        ),
        token_file=Path("/t"),
        replicas="1:4",
    )


@pytest.mark.parametrize(("given", "expected"), [(2, (2, 2)), ("3", (3, 3)), ("1:4", (1, 4)), ("2:2", (2, 2))], ids=str)
def test_replicas_are_a_number_or_a_range(given: Any, expected: tuple[int, int]) -> None:
    assert RaySettings.read({"server": SERVER, "replicas": given}).replica_range() == expected


@pytest.mark.parametrize("given", [0, -1, "4:1", "0:2", "two", "1:", "", 1.5, None, True, "9" * 5000], ids=repr)
def test_other_replicas_are_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="replicas"):
        RaySettings.read({"server": SERVER, "replicas": given})


def batching(**fields: Any) -> dict[str, Any]:
    return {"server": SERVER | {"batching": fields}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "lacks ['server']"),
        ({"server": {}}, "nothing to serve"),
        ({"server": "/m"}, "args.server is '/m', expected an object"),
        ({"server": SERVER, "replica": 2}, "unknown fields ['replica']"),
        ({"server": SERVER | {"artefacts": ["/m"]}}, "unknown fields ['artefacts']"),
        (batching(max_delay_ms=2), "args.server.batching lacks nothing and has the unknown fields ['max_delay_ms']"),
        ({"server": {"artifacts": "/m"}}, "args.server.artifacts is '/m', expected a list"),
        ({"server": {"artifacts": [["/m"]]}}, "args.server.artifacts[0]"),
        ({"server": {"artifacts": ["runs/digits"]}}, "'runs/digits': expected an absolute"),
        ({"server": {"artifacts": ["/m\u2028"]}}, "printable"),
        ({"server": {"repository": "models"}}, "'models': expected an absolute"),
        ({"server": SERVER | {"trusted_keys": ["key"]}}, "'key': expected an absolute"),
        ({"server": SERVER, "token_file": "token"}, "'token': expected an absolute"),
        (batching(max_batch=0), "max_batch=0: expected a number from 1 on"),
        (batching(max_batch=2.5), "max_batch is '2.5', expected int"),
        (batching(max_batch=True), "max_batch is 'True', expected int"),
        (batching(timeout="soon"), "timeout is 'soon', expected float"),
        (batching(timeout=None), "timeout is 'None', expected float"),
        (batching(timeout=math.nan), "timeout=nan"),
        (batching(timeout="inf"), "timeout=inf"),
        ({"server": SERVER | {"threads": 0}}, "threads=0"),
        ({"server": SERVER | {"drain": -1}}, "drain=-1"),
        ({"server": SERVER | {"limits": {"body": 0}}}, "body=0"),
        ({"server": SERVER, "downscale_delay": -1}, "downscale_delay=-1"),
        ({"server": SERVER, "target_ongoing": 0}, "target_ongoing=0"),
        ({"server": SERVER, "packed": {"m/1": "0"}}, "which is not set"),
        ({"server": SERVER, "log_level": "loud"}, "log_level='loud'"),
        ({"server": SERVER | {"host": "0.0.0.0"}}, "server.host has no meaning here"),
        ({"server": SERVER | {"grpc_port": None}}, "server.grpc_port has no meaning here"),
        ({"server": SERVER | {"watch": 5}}, "server.watch has no meaning here"),
        ({"server": SERVER | {"workers": 2}}, "server.workers has no meaning here"),
        ({"server": SERVER | {"limits": {"connections": 9}}}, "server.limits.connections has no meaning here"),
        ({"server": SERVER | {"tls_certificate": "/c", "tls_key": "/k"}}, "server.tls_certificate has no meaning"),
    ],
    ids=lambda value: value[-40:] if isinstance(value, str) else "",
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        RaySettings.read(arguments)
    assert str(refused.value).startswith("The application cannot be built: ")
    assert message in str(refused.value)


def test_a_token_in_the_file_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="token_file names the file") as refused:
        RaySettings.read({"server": SERVER | {"token": "sixteen-characters"}})
    assert "sixteen" not in str(refused.value)


def test_the_token_comes_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("sixteen-characters\n")
    settings = RaySettings.read({"server": SERVER, "token_file": str(tmp_path / "token")})
    assert settings.server_settings().token == "sixteen-characters"
    assert settings.server_settings().model_threads == 1
    assert settings.server.token is None


def test_ray_is_told_what_was_asked_for() -> None:
    server = ServerSettings(
        repository=Path("/m"), device="cuda", threads=2, drain=0.5, batching=BatchSettings(max_batch=8, max_queue=100)
    )
    fixed = RaySettings(server, replicas=3).deployment()
    assert fixed["num_replicas"] == 3
    assert "autoscaling_config" not in fixed
    assert fixed["max_ongoing_requests"] == 116
    assert (fixed["graceful_shutdown_timeout_s"], fixed["graceful_shutdown_wait_loop_s"]) == (0.5, 0.5)
    assert fixed["ray_actor_options"] == {"num_cpus": 2, "num_gpus": 1}
    scaled = RaySettings(server, replicas="1:4", upscale_delay=1, downscale_delay=2).deployment()
    assert "num_replicas" not in scaled
    assert scaled["autoscaling_config"] == {
        "min_replicas": 1,
        "max_replicas": 4,
        "target_ongoing_requests": 4,
        "upscale_delay_s": 1,
        "downscale_delay_s": 2,
    }
