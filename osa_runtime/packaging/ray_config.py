"""The config file of a Ray Serve application. Every value is written as JSON, which YAML takes as it is."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass
from typing import Any

from osa_runtime.errors import InputError
from osa_runtime.serving_ray.options import RayOptions

HOST = re.compile(r"[\w.:-]+", re.ASCII)
ROUTE = re.compile(r"/|(/[\w.~-]+)+", re.ASCII)
APPLICATION = "osa"
IMPORT_PATH = "osa_runtime.serving_ray.app:build"
SERVICER = "osa_runtime.serving_ray.grpc_stubs.add_servicer"  # that module imports gRPC, which packing does not need
ALWAYS = ("repository", "packed", "replicas", "threads", "max_batch")  # also where they are the defaults
TEXT = """# A Ray Serve application: serve deploy serve.yaml
# Every machine of the cluster has osa-runtime[{extra},serve,ray], and this folder where `repository` says.
# Ray was started on each of them after: . ./environment.sh

proxy_location: {location}

http_options:
  host: {host}
  port: {port}

{grpc}applications:
  - name: {name}
    route_prefix: {route}
    import_path: {import_path}
    args:
{arguments}
"""
GRPC = """grpc_options:
  port: {port}
  grpc_servicer_functions: [{servicer}]

"""


@dataclass(frozen=True)
class RayAddresses:
    """Where each machine of the cluster takes requests; ``grpc_port`` None leaves gRPC out."""

    host: str = "0.0.0.0"
    http_port: int = 8000
    grpc_port: int | None = 8001
    route: str = "/"
    location: str = "EveryNode"

    def __post_init__(self) -> None:
        for flag, port in (("--http-port", self.http_port), ("--grpc-port", self.grpc_port)):
            if port is not None and not 1 <= port <= 65535:
                raise InputError(f"{flag} is {port}, expected 1 to 65535.")
        if self.http_port == self.grpc_port:
            raise InputError(f"--http-port and --grpc-port are both {self.http_port}; choose two.")
        if not HOST.fullmatch(self.host):
            raise InputError(f"--host is {self.host!r}, expected an address such as 0.0.0.0.")
        if not ROUTE.fullmatch(self.route):
            raise InputError(f"--route-prefix is {self.route!r}, expected / or a path such as /digits.")


def config_text(options: RayOptions, addresses: RayAddresses) -> str:
    grpc = ""
    if addresses.grpc_port is not None:
        grpc = GRPC.format(port=addresses.grpc_port, servicer=SERVICER)
    return TEXT.format(
        extra="cuda" if options.device.startswith("cuda") else "cpu",
        location=addresses.location,
        host=json.dumps(addresses.host),
        port=addresses.http_port,
        grpc=grpc,
        name=APPLICATION,
        route=json.dumps(addresses.route),
        import_path=IMPORT_PATH,
        arguments="\n".join(_lines(_arguments(options), 6)),
    )


def _arguments(options: RayOptions) -> dict[str, Any]:
    """What was chosen, and what a reader looks for first."""
    default = RayOptions(repository=options.repository)
    values = {entry.name: getattr(options, entry.name) for entry in dataclasses.fields(options)}
    return {name: value for name, value in values.items() if name in ALWAYS or value != getattr(default, name)}


def _lines(values: dict[str, Any], indent: int) -> list[str]:
    lines = []
    for name, value in values.items():
        key = " " * indent + (name if name.isidentifier() else json.dumps(name))
        if isinstance(value, dict):
            lines += [f"{key}:", *_lines(value, indent + 2)]
        else:
            lines.append(f"{key}: {_scalar(value)}")
    return lines


def _scalar(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, float) and "." not in text:
        return text.replace("e", ".0e")  # YAML 1.1 takes 1e-05 for a word
    return text
