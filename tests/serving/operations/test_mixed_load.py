"""Good and bad clients at once: every valid request is answered right, every bad one refused, and the server lives."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mixed_load import MixedLoad
from osa_runtime import load
from serving_process import ServerProcess

Exported = Callable[[str, str], Path]


def test_a_few_seconds_of_everything(exported: Exported) -> None:
    folder = exported("vit", "onnx")
    images = np.random.default_rng(0).standard_normal((32, 1, 8, 8)).astype(np.float32)
    logits = load(folder, threads=1).run({"images": images})["logits"]
    with ServerProcess(folder, "--max-body-mb", "1") as server:
        work = MixedLoad(server.http, folder.name, images, logits, 1 << 20)
        asyncio.run(work.run(seconds=3, clients=24))
        assert work.mistakes == []
        assert {"honest", "binary", "malformed", "impatient", "half"} <= set(work.counts)
        connection = http.client.HTTPConnection(server.http, timeout=30)
        connection.request("GET", "/v2/health/ready")
        assert connection.getresponse().status == 200
        connection.close()
        assert server.stop() == 0
    assert server.noise == []
    assert [event for event in server.events if event.get("level") == "error"] == []
