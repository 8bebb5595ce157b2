"""The Ray Serve application. In a config file: ``import_path: osa_runtime.serving_ray.app:build``."""

from __future__ import annotations

from typing import Any

from ray import serve

from osa_runtime.serving_ray import grpc_stubs  # noqa: F401 - replicas must be able to unpickle the messages
from osa_runtime.serving_ray.replica import Replica
from osa_runtime.serving_ray.settings import RaySettings

DEPLOYMENT = "osa"


def build(arguments: dict[str, Any]) -> serve.Application:
    """Build the application; the arguments are the fields of :class:`RaySettings`."""
    settings = RaySettings.read(arguments)
    deployment = serve.deployment(serve.ingress()(Replica), name=DEPLOYMENT)
    return deployment.options(**settings.deployment()).bind(settings)
