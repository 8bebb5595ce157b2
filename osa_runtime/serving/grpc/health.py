"""``grpc.health.v1``, which probes and load balancers ask: the server as a whole, and each model by its name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from grpc_health.v1 import health_pb2 as pb

from osa_runtime.serving.engine.engine import Engine
from osa_runtime.serving.grpc.service import SERVICE
from osa_runtime.serving.refusals import LONGEST_NAME, NotFound

HEALTH = pb.DESCRIPTOR.services_by_name["Health"].full_name
PERIOD = 0.2  # seconds between two looks for those who watch
WHOLE = frozenset({"", SERVICE})  # names of the server; all others are models

Status = pb.HealthCheckResponse


class GrpcHealth:
    """Statuses are those that ``/v2/health/ready`` and ``/v2/models/NAME/ready`` have at the moment."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def check(self, message: Any) -> Any:
        status = self._status(message.service)
        if status == Status.SERVICE_UNKNOWN:
            raise NotFound(f"{message.service[:LONGEST_NAME]!r} is not a model of this server.")
        return Status(status=status)

    async def watch(self, message: Any) -> AsyncIterator[Any]:
        """The status now and whenever it changes; a server that stops says so and ends."""
        last, stopping = None, False
        while not stopping:
            status, stopping = self._status(message.service), self._engine.stopping
            if status != last:
                yield Status(status=status)
                last = status
            await asyncio.sleep(PERIOD)

    def _status(self, name: str) -> Any:
        if name in WHOLE:
            return Status.SERVING if self._engine.ready else Status.NOT_SERVING
        if not self._engine.repository.knows(name):
            return Status.SERVICE_UNKNOWN
        try:
            self._engine.repository.find(name)
        except NotFound:
            return Status.NOT_SERVING
        return Status.NOT_SERVING if self._engine.stopping else Status.SERVING
