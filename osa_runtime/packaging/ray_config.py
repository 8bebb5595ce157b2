"""The config file of a Ray Serve application, as JSON: Ray reads YAML, of which JSON is a part."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from dataclasses import dataclass
from typing import Any

from osa_runtime.errors import InputError
from osa_runtime.serving_ray.options import NOT_HERE, RayOptions

HOST = re.compile(r"[\w.:-]+", re.ASCII)
ROUTE = re.compile(r"/|(/[\w.~-]+)+", re.ASCII)
APPLICATION = "osa"
IMPORT_PATH = "osa_runtime.serving_ray.app:build"
SERVICER = "osa_runtime.serving_ray.grpc_stubs.add_servicer"  # that module imports gRPC, which packing does not need


@dataclass(frozen=True)
class RayAddresses:
    """Where each machine of the cluster takes requests; ``grpc_port`` None leaves gRPC out."""

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


def config_text(options: RayOptions, addresses: RayAddresses) -> str:
    grpc = {"port": addresses.grpc_port, "grpc_servicer_functions": [SERVICER]}
    application = {
        "name": APPLICATION,
        "route_prefix": addresses.route,
        "import_path": IMPORT_PATH,
        "args": arguments(options),
    }
    config = {
        "proxy_location": addresses.location,
        "http_options": {"host": addresses.host, "port": addresses.http_port},
        **({} if addresses.grpc_port is None else {"grpc_options": grpc}),
        "applications": [application],
    }
    return json.dumps(config, indent=2, ensure_ascii=False, default=os.fspath) + "\n"


def arguments(options: RayOptions) -> dict[str, Any]:
    """What ``RayOptions.read`` takes."""
    found = dataclasses.asdict(options)
    for name in NOT_HERE:
        del found["server"][name]
    del found["server"]["limits"]["connections"]
    return found
