"""The Ray Serve application. In a config file: ``import_path: osa_runtime.serving_ray.app:build``."""

from __future__ import annotations

from typing import Any

from ray import serve

from osa_runtime.serving_ray import grpc_stubs  # noqa: F401 - replicas must be able to unpickle the messages
from osa_runtime.serving_ray.options import RayOptions
from osa_runtime.serving_ray.replica import Replica

DEPLOYMENT = "osa"
STARTS = 3  # that may fail before the deployment is given up
HEALTH_PERIOD = 5.0  # seconds


def build(arguments: dict[str, Any]) -> serve.Application:
    """The arguments are the fields of :class:`RayOptions`."""
    return build_app(RayOptions.read(arguments))


def build_app(options: RayOptions) -> serve.Application:
    deployment = serve.deployment(serve.ingress()(Replica), name=DEPLOYMENT)
    return deployment.options(**_deployment_options(options)).bind(options)


def _deployment_options(options: RayOptions) -> dict[str, Any]:
    return {
        # The replica's own queue answers 503 with Retry-After first; Ray's limit of 5 would leave nothing to batch.
        "max_ongoing_requests": options.max_queue + 2 * options.max_batch,
        "graceful_shutdown_timeout_s": options.drain,
        "graceful_shutdown_wait_loop_s": min(1.0, options.drain),
        "health_check_period_s": HEALTH_PERIOD,
        "max_constructor_retry_count": STARTS,
        "logging_config": {"enable_access_log": options.log_requests},
        "ray_actor_options": _resources(options),
        **_scale(options),
    }


def _resources(options: RayOptions) -> dict[str, Any]:
    gpus = 1 if options.device.startswith("cuda") else 0
    return {"num_cpus": options.threads, "num_gpus": gpus}


def _scale(options: RayOptions) -> dict[str, Any]:
    least, most = options.replica_range()
    if least == most:
        return {"num_replicas": least}
    target = options.target_ongoing or max(1.0, options.max_batch / 2)
    scaling = {"min_replicas": least, "max_replicas": most, "target_ongoing_requests": target}
    delays = {"upscale_delay_s": options.upscale_delay, "downscale_delay_s": options.downscale_delay}
    return {"autoscaling_config": scaling | delays}
