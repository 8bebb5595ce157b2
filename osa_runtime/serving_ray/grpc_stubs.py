"""The protocol's protobuf stubs for Ray's gRPC proxy, which pickles the messages between its processes."""

from __future__ import annotations

import inspect
from typing import Any

from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc


def _name_homes() -> None:
    """Set the modules of the messages to importable names, which pickle needs; protoc's are not importable."""
    for module in (service_pb2, model_config_pb2):
        for message in vars(module).values():
            if inspect.isclass(message):
                message.__module__ = module.__name__


_name_homes()


def add_servicer(servicer: Any, server: Any) -> None:
    """Register the service; ``grpc_servicer_functions`` in Ray's ``grpc_options`` names this function."""
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
