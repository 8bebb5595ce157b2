"""The protocol's protobuf stubs for Ray's gRPC proxy, which pickles the messages between its processes."""

from __future__ import annotations

import inspect
from typing import Any

from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc


def _name_homes() -> None:
    """protoc named the messages after files that cannot be imported under these names; pickle needs the real ones."""
    for module in (service_pb2, model_config_pb2):
        for message in vars(module).values():
            if inspect.isclass(message):
                message.__module__ = module.__name__


_name_homes()


def add_servicer(servicer: Any, server: Any) -> None:
    """Named by ``grpc_servicer_functions`` in Ray's ``grpc_options``."""
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
