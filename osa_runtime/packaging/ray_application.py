"""A Ray Serve application from exported folders.

OUT/osa-package.json           the list of packed models; marks a folder that we wrote
OUT/serve.json                 for ``serve deploy`` and ``serve run``
OUT/models/NAME/VERSION/       the artifacts, as they were exported
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osa_runtime.errors import InputError
from osa_runtime.packaging.packed_artifacts import copy_artifact, describe, new_package, open_onnx
from osa_runtime.serving.engine.engine import Engine
from osa_runtime.serving.logs import Log
from osa_runtime.serving.settings import ServerSettings, is_loopback
from osa_runtime.serving_ray.settings import NOT_HERE, RaySettings, packed_models

HOST = re.compile(r"[\w.:-]+", re.ASCII)
ROUTE = re.compile(r"/|(/[\w.~-]+)+", re.ASCII)
APPLICATION = "osa"
IMPORT_PATH = "osa_runtime.serving_ray.app:build"
SERVICER = "osa_runtime.serving_ray.grpc_stubs.add_servicer"  # that module imports gRPC, which packing does not need


@dataclass(frozen=True)
class RayAddresses:
    """Addresses at which each machine of the cluster accepts requests; ``grpc_port`` None leaves gRPC out."""

    host: str = "0.0.0.0"
    http_port: int = 8000
    grpc_port: int | None = 8001
    route: str = "/"
    location: str = "EveryNode"

    def __post_init__(self) -> None:
        for name, port in (("http_port", self.http_port), ("grpc_port", self.grpc_port)):
            if port is not None and not 1 <= port <= 65535:
                raise InputError(f"{name}={port}: expected 1 to 65535.")
        if self.http_port == self.grpc_port:
            raise InputError(f"http_port={self.http_port} and grpc_port={self.grpc_port} are the same; choose two.")
        if not HOST.fullmatch(self.host):
            raise InputError(f"host={self.host!r}: expected an address such as 0.0.0.0.")
        if not ROUTE.fullmatch(self.route):
            raise InputError(f"route={self.route!r}: expected / or a path such as /digits.")


def config_text(settings: RaySettings, addresses: RayAddresses) -> str:
    grpc = {"port": addresses.grpc_port, "grpc_servicer_functions": [SERVICER]}
    application = {
        "name": APPLICATION,
        "route_prefix": addresses.route,
        "import_path": IMPORT_PATH,
        "args": arguments(settings),
    }
    config = {
        "proxy_location": addresses.location,
        "http_options": {"host": addresses.host, "port": addresses.http_port},
        **({} if addresses.grpc_port is None else {"grpc_options": grpc}),
        "applications": [application],
    }
    return json.dumps(config, indent=2, ensure_ascii=False, default=os.fspath) + "\n"


def arguments(settings: RaySettings) -> dict[str, Any]:
    """Arguments for ``RaySettings.read``."""
    found = dataclasses.asdict(settings)
    for name in NOT_HERE:
        del found["server"][name]
    del found["server"]["limits"]["connections"]
    return found


CONFIG, MODELS = "serve.json", "models"


@dataclass(frozen=True)
class PackedApplication:
    """The result of packing; ``models`` are names with versions."""

    config: Path
    models: list[str]


def package_ray(
    artifacts: Sequence[Path],
    out: Path,
    settings: RaySettings | None = None,
    addresses: RayAddresses | None = None,
    *,
    name: str | None = None,
    version: int = 1,
    replace: bool = False,
) -> PackedApplication:
    """Write the application in one step. The server's ``repository`` in ``settings`` is the path that ``out/models``
    will have on the machines of the cluster."""
    settings = settings or RaySettings(ServerSettings(repository=out.absolute() / MODELS))
    with new_package(artifacts, out, name, "Ray Serve", replace=replace) as (temporary, named):
        models = temporary / MODELS
        for model, folder in named.items():
            artifact = open_onnx(folder)
            (models / model / str(version)).mkdir(parents=True)
            copy_artifact(artifact, models / model / str(version))
        shown = asyncio.run(_rehearse(models, settings.server))
        addresses = addresses or RayAddresses()
        settings = dataclasses.replace(settings, packed=packed_models(models), loopback=is_loopback(addresses.host))
        (temporary / CONFIG).write_text(config_text(settings, addresses), encoding="utf-8")
        describe(temporary, "ray", models=settings.packed)
    return PackedApplication(out / CONFIG, shown)


async def _rehearse(models: Path, server: ServerSettings) -> list[str]:
    """Load and run each model once, as a replica will, but on the CPU of this machine and without the cluster's keys.
    Return their names and versions."""
    here = dataclasses.replace(
        server,
        repository=models.absolute(),
        device="cpu",
        threads=1,
        require_certificate=server.wants_certificate,
        trusted_keys=(),
    )
    engine = Engine(here, Log("error"))
    try:
        await engine.repository.load_all()
        return [f"{model.name} (version {model.version_text})" for model in engine.repository.served()]
    finally:
        await engine.close()
