"""The application's settings, ``args`` in its config file: a server's settings, Ray's own, and the
hashes of the packed models, since other models would answer differently.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osa_runtime.artifact import MANIFEST_FILE, sha256
from osa_runtime.errors import ArtifactError, ConfigError
from osa_runtime.serving.guard import read_token
from osa_runtime.serving.logs import LEVELS
from osa_runtime.serving.settings import Limits, ServerSettings, check_from
from osa_runtime.typed_json import decode

Packed = Mapping[str, str]


def packed_models(repository: Path) -> dict[str, str]:
    """``NAME/VERSION`` and the hash of its manifest, which holds the hashes of the other files."""
    found = sorted(repository.glob(f"*/*/{MANIFEST_FILE}"))
    return {path.parent.relative_to(repository).as_posix(): sha256(path) for path in found}


def check_packed(repository: Path, expected: Packed) -> None:
    found = packed_models(repository)
    missing, more = expected.keys() - found.keys(), found.keys() - expected.keys()
    changed = {name for name in expected.keys() & found.keys() if found[name] != expected[name]}
    wrong = {"missing": missing, "not packed": more, "changed": changed}
    reasons = [f"{what}: {', '.join(sorted(names))}" for what, names in wrong.items() if names]
    if reasons:
        raise ArtifactError(
            f"{repository} on this machine does not hold the models that were packed ({'; '.join(reasons)}). "
            "Copy the package here again, or deploy the config file in it."
        )


RANGE = re.compile(r"(\d{1,6})(?::(\d{1,6}))?", re.ASCII)
PROXIES = "Ray's proxies accept the requests: http_options and grpc_options have the addresses"
NOT_HERE = {  # settings of a server that have no meaning in a replica
    "host": PROXIES,
    "http_port": PROXIES,
    "grpc_port": PROXIES,
    "tls_certificate": "TLS is for a proxy in front of Ray",
    "tls_key": "TLS is for a proxy in front of Ray",
    "watch": "it would reach one replica; deploy the application again for a new version",
    "workers": "replicas are Ray's processes",
    "token": "every reader of the config file would see it; token_file names the file that holds it",
}
STARTS = 3  # failures before the deployment is abandoned
HEALTH_PERIOD = 5.0  # seconds


@dataclass(frozen=True)
class RaySettings:
    """Paths are those of the machines that run the replicas, so they must be absolute."""

    server: ServerSettings  # of each replica; ``threads`` None is 1 here, and Ray counts as many CPUs
    packed: dict[str, str] = field(default_factory=dict)  # hashes that the repository's models must have
    token_file: Path | None = None  # or OSA_SERVE_TOKEN in the environment of the replicas
    replicas: int | str = 1  # "MIN:MAX" scales with the load
    target_ongoing: float | None = None  # target number of ongoing requests per replica; half a batch if None
    upscale_delay: float = 30.0  # seconds of too many requests before replicas are added
    downscale_delay: float = 600.0  # seconds of too few requests before replicas are removed
    log_level: str = "info"
    log_requests: bool = False
    loopback: bool = False  # Ray's proxy listens on this machine only, and without a token answers to its names only

    @classmethod
    def read(cls, arguments: Mapping[str, Any]) -> RaySettings:
        """Read the arguments of a config file; unknown ones are errors."""
        try:
            return decode(cls, dict(arguments), "args", whole=False)
        except ValueError as error:
            raise ConfigError(f"The application cannot be built: {error}") from error

    def __post_init__(self) -> None:
        for path in self._paths():
            if not path.is_absolute() or not str(path).isprintable():
                raise ConfigError(f"The path {str(path)!r}: expected an absolute one of printable characters.")
        default = ServerSettings(artifacts=self.server.artifacts, repository=self.server.repository)
        for name, reason in NOT_HERE.items():
            if getattr(self.server, name) != getattr(default, name):
                raise ConfigError(f"server.{name} has no meaning here: {reason}. Leave it out.")
        if self.server.limits.connections != Limits.connections:
            raise ConfigError("server.limits.connections has no meaning here: connections end at Ray's proxies.")
        check_from(0, upscale_delay=self.upscale_delay, downscale_delay=self.downscale_delay)
        check_from(0.001, target_ongoing=self.target_ongoing)
        if self.log_level not in LEVELS:
            raise ConfigError(f"log_level={self.log_level!r}: expected {', '.join(LEVELS)}.")
        if self.packed and self.server.repository is None:
            raise ConfigError("packed holds the hashes of the models in server.repository, which is not set.")
        self.replica_range()

    def _paths(self) -> Iterator[Path]:
        yield from self.server.artifacts
        yield from self.server.trusted_keys
        yield from (path for path in (self.server.repository, self.token_file) if path is not None)

    def replica_range(self) -> tuple[int, int]:
        """The smallest and the largest number of replicas; the same if it is fixed."""
        match = RANGE.fullmatch(str(self.replicas))
        least = int(match[1]) if match else 0
        most = int(match[2] or least) if match else 0
        if least < 1 or most < least:
            raise ConfigError(f"replicas={self.replicas!r}: expected a number from 1 on, or MIN:MAX such as 1:4.")
        return least, most

    @property
    def threads(self) -> int:
        return self.server.threads or 1

    def server_settings(self) -> ServerSettings:
        """The settings of the server in a replica, with the token of this machine."""
        return dataclasses.replace(self.server, threads=self.threads, token=read_token(self.token_file))

    def deployment(self) -> dict[str, Any]:
        """Ray's options of the deployment."""
        batching = self.server.batching
        return {
            # The replica's own queue answers 503 with Retry-After first; Ray's limit of 5 would leave nothing to batch.
            "max_ongoing_requests": batching.max_queue + 2 * batching.max_batch,
            "graceful_shutdown_timeout_s": self.server.drain,
            "graceful_shutdown_wait_loop_s": min(1.0, self.server.drain),
            "health_check_period_s": HEALTH_PERIOD,
            "max_constructor_retry_count": STARTS,
            "logging_config": {"enable_access_log": self.log_requests},
            "ray_actor_options": {"num_cpus": self.threads, "num_gpus": int(self.server.device.startswith("cuda"))},
            **self._scale(),
        }

    def _scale(self) -> dict[str, Any]:
        least, most = self.replica_range()
        if least == most:
            return {"num_replicas": least}
        target = self.target_ongoing or max(1.0, self.server.batching.max_batch / 2)
        scaling = {"min_replicas": least, "max_replicas": most, "target_ongoing_requests": target}
        delays = {"upscale_delay_s": self.upscale_delay, "downscale_delay_s": self.downscale_delay}
        return {"autoscaling_config": scaling | delays}
