"""A Ray for one application: started on this machine, or joined where RAY_ADDRESS names one."""

from __future__ import annotations

import logging
import os
import socket
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from osa_runtime.errors import ArtifactError, DeviceError, InputError
from osa_runtime.serving_ray.addresses import Addresses
from osa_runtime.serving_ray.environment import tune
from osa_runtime.serving_ray.options import RayOptions

APPLICATION = "osa"
ADDRESS = "RAY_ADDRESS"
PATIENCE = 10  # seconds


class Cluster:
    """``with Cluster(...) as cluster: cluster.deploy(); ...``; leaving drains the replicas and ends what was begun."""

    def __init__(self, options: RayOptions, addresses: Addresses) -> None:
        self._options, self._addresses = options, addresses
        self.joined = bool(os.environ.get(ADDRESS))
        self._files = tempfile.TemporaryDirectory(prefix="osa-haproxy-", ignore_cleanup_errors=True)
        tune(Path(self._files.name), options.timeout)
        import ray  # only now: it reads the environment as it is imported
        from ray import serve

        self._ray: Any = ray
        self._serve: Any = serve
        self._deployed = False

    def __enter__(self) -> Cluster:
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
        if self.joined:
            self._join(quiet)
        else:
            cpus = max(os.cpu_count() or 1, self._cpus(self._options.replica_range()[1]))
            self._ray.init(num_cpus=cpus, include_dashboard=False, _node_ip_address=self._addresses.node, **quiet)
        return self

    def _join(self, quiet: dict[str, Any]) -> None:
        address = os.environ[ADDRESS]
        try:
            _knock(address)
            self._ray.init(address=address, **quiet)
        except (OSError, RuntimeError, ValueError) as error:
            raise InputError(
                f"{ADDRESS} is {address}, and no Ray can be joined there: {error}. Start one, or unset the variable to "
                "start one here. A Ray that asks for its token needs RAY_AUTH_MODE=token here, too."
            ) from error
        needed, present = self._cpus(self._options.replica_range()[0]), self._ray.cluster_resources().get("CPU", 0)
        if needed > present:
            raise DeviceError(f"The replicas need {needed} CPUs, and Ray has {present:g}. Ask for fewer replicas.")
        if APPLICATION in self._serve.status().applications:
            raise InputError(f"An application named {APPLICATION} runs on this Ray already; end it first.")

    def _cpus(self, replicas: int) -> int:
        return replicas * self._options.threads

    def deploy(self) -> None:
        """Return when every replica answers."""
        from osa_runtime.serving_ray.app import build_app

        self._serve.start(**self._addresses.serve_options())
        self._deployed = True
        try:
            self._serve.run(build_app(self._options), name=APPLICATION, route_prefix="/")
        except RuntimeError as error:
            raise ArtifactError(f"Ray could not start the replicas: {self._reason() or error}") from error

    def _reason(self) -> str:
        """Ray's message is a traceback that ends with the error of the replica."""
        application = self._serve.status().applications.get(APPLICATION)
        states = application.deployments.values() if application else ()
        return " ".join(state.message.strip().splitlines()[-1] for state in states if state.message.strip())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._deployed:
            self._serve.delete(APPLICATION)  # drains the replicas; what is left of Serve ends with a Ray of our own
        self._ray.shutdown()
        self._files.cleanup()


def _knock(address: str) -> None:
    """Ray itself tries a dead address for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
