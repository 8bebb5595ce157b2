"""The server that hostile clients attack; every attack is watched by a canary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tritonclient.grpc import service_pb2 as pb

from canary import Target
from grpc_attack import INFER, channel, valid


@pytest.fixture(scope="module")
def running(exported: Callable[[str, str], Path]) -> Iterator[Target]:
    with Target(exported("vit", "onnx"), "--timeout", "5") as target:
        yield target


@pytest.fixture
def target(running: Target) -> Iterator[Target]:
    with running.watched():
        yield running
        with channel(running) as opened:  # gRPC itself serves on
            answer = opened.unary_unary(INFER)(valid(running), timeout=5)
        assert len(pb.ModelInferResponse.FromString(answer).raw_output_contents[0]) == 40
