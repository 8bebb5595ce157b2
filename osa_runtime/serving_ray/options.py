"""What the application is told: the arguments in a config file of ``serve deploy``, or the flags of ``osa serve``."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from osa_runtime.errors import ConfigError
from osa_runtime.serving.bearer_token import read_token
from osa_runtime.serving.settings import MEGABYTE, BatchSettings, Limits, ServerSettings

NUMBERS = ("upscale_delay", "downscale_delay", "max_delay_ms", "timeout", "drain", "max_body_mb", "max_tensor_mb")
RANGE = re.compile(r"(\d+)(?::(\d+))?")


@dataclass(frozen=True)
class RayOptions:
    """Paths are those of the machines that run the replicas, so they must be absolute."""

    artifacts: tuple[str, ...] = ()
    repository: str | None = None
    packed: Mapping[str, str] = field(default_factory=dict)  # hashes that the repository's models must have
    versions: int = 1
    require_certificate: bool = False
    replicas: int | str = 1  # "MIN:MAX" scales with the load
    target_ongoing: float | None = None  # requests under way per replica that scaling aims at; half a batch if None
    upscale_delay: float = 30.0  # seconds of too many requests before there are more replicas
    downscale_delay: float = 600.0  # seconds of too few before there are less
    threads: int = 1  # of the model in each replica; Ray counts as many CPUs
    device: str = "cpu"
    allow_fallback: bool = False
    max_batch: int = 32
    max_delay_ms: float = 0.0
    max_queue: int = 512
    timeout: float = 30.0
    drain: float = 30.0
    max_body_mb: float = 64.0
    max_tensor_mb: float = 64.0
    token_file: str | None = None  # or OSA_SERVE_TOKEN in the environment of the replicas
    log_level: str = "info"
    log_requests: bool = False

    @classmethod
    def read(cls, arguments: Mapping[str, Any]) -> RayOptions:
        """From a config file, where a wrong word must not be ignored."""
        known = [entry.name for entry in dataclasses.fields(cls)]
        unknown = sorted(set(arguments) - set(known))
        if unknown:
            raise ConfigError(f"Unknown arguments: {', '.join(unknown)}. Expected some of {', '.join(known)}.")
        values = dict(arguments)
        given = values.get("artifacts", ())
        values["artifacts"] = (given,) if isinstance(given, str) else tuple(given)
        try:
            options = cls(**values)
            options.settings()
        except (TypeError, AttributeError) as error:
            raise ConfigError(f"The arguments {values} have a value of a wrong type: {error}.") from error
        return options

    def __post_init__(self) -> None:
        for path in (*self.artifacts, self.repository, self.token_file):
            if path is not None and not Path(path).is_absolute():
                raise ConfigError(f"The path {path} is relative; replicas run elsewhere, so give an absolute one.")
        for name in ("versions", "threads", "max_batch", "max_queue"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} is {value!r}, expected a whole number from 1 on.")
        for name in NUMBERS:
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise ConfigError(f"{name} is {value!r}, expected a number from 0 on.")
        if self.target_ongoing is not None and not 0 < self.target_ongoing < math.inf:
            raise ConfigError(f"target_ongoing is {self.target_ongoing!r}, expected a number above 0.")
        if self.packed and self.repository is None:
            raise ConfigError("packed holds the hashes of the models in repository, and there is none.")
        self.replica_range()

    def replica_range(self) -> tuple[int, int]:
        """The least and the most replicas; the same number twice when it is fixed."""
        match = RANGE.fullmatch(str(self.replicas))
        least = int(match[1]) if match else 0
        most = int(match[2] or least) if match else 0
        if least < 1 or most < least:
            raise ConfigError(f"replicas is {self.replicas!r}, expected a number from 1 on, or MIN:MAX such as 1:4.")
        return least, most

    def settings(self) -> ServerSettings:
        """For the server in each replica; Ray owns the ports, and the token stays out of the config file."""
        return ServerSettings(
            artifacts=tuple(Path(path) for path in self.artifacts),
            repository=Path(self.repository) if self.repository else None,
            device=self.device,
            allow_fallback=self.allow_fallback,
            threads=self.threads,
            versions=self.versions,
            drain=self.drain,
            require_certificate=self.require_certificate,
            token=read_token(Path(self.token_file) if self.token_file else None),
            batching=BatchSettings(self.max_batch, self.max_delay_ms / 1e3, self.max_queue, self.timeout),
            limits=Limits(int(self.max_body_mb * MEGABYTE), int(self.max_tensor_mb * MEGABYTE)),
        )
