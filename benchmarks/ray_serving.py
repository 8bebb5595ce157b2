"""One model behind Ray Serve: one and two replicas, with HAProxy and with Ray's own proxy, beside the embedded server.

Every contender is started as a user starts it, asked by the same clients in a closed loop (binary REST, batch 1), and
stopped; the rounds take turns. Ray also listens on other interfaces, so run it where nobody else is:

    unshare -n sh -c 'ip link set lo up; .venv-ray/bin/python benchmarks/ray_serving.py runs/digits-onnx --rounds 3'
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

import osa_runtime

CONTENDERS = {
    "embedded": (["--threads", "1"], {}),
    "Ray, HAProxy, 1 replica": (["--engine", "ray", "--replicas", "1"], {}),
    "Ray, HAProxy, 2 replicas": (["--engine", "ray", "--replicas", "2"], {}),
    "Ray, own proxy, 1 replica": (["--engine", "ray", "--replicas", "1"], {"RAY_SERVE_ENABLE_HA_PROXY": "0"}),
    "Ray, own proxy, 2 replicas": (["--engine", "ray", "--replicas", "2"], {"RAY_SERVE_ENABLE_HA_PROXY": "0"}),
}
CONCURRENCY = (1, 16)
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Request:
    """The bytes of a request, and the bytes that must end its answer."""

    def __init__(self, artifact: Path) -> None:
        with osa_runtime.load(artifact) as session:
            (spec,) = session.inputs
            shape = [size if isinstance(size, int) else 1 for size in spec.shape]
            array = np.random.default_rng(0).random(shape).astype(spec.dtype)
            self.expected = next(iter(session.run({spec.name: array}).values()))
        data = array.tobytes()
        tensor = {"name": spec.name, "shape": shape, "datatype": "FP32", "parameters": {"binary_data_size": len(data)}}
        head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        lines = b"POST /v2/models/%s/infer HTTP/1.1\r\nhost: x\r\n" % artifact.name.encode()
        lines += b"inference-header-content-length: %d\r\ncontent-length: %d\r\n\r\n"
        self.content = lines % (len(head), len(head) + len(data)) + head + data

    def check(self, status: bytes, body: bytes) -> None:
        assert status == b"200", (status, body[:200])
        got = np.frombuffer(body[-self.expected.nbytes :], self.expected.dtype).reshape(self.expected.shape)
        np.testing.assert_allclose(got, self.expected, rtol=1e-4, atol=1e-4)


async def ask(port: int, request: Request, end: float) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answers = 0
    while time.perf_counter() < end:
        writer.write(request.content)
        head = await reader.readuntil(b"\r\n\r\n")
        length = LENGTH.search(head)
        assert length is not None, head
        request.check(head.split(b" ", 2)[1], await reader.readexactly(int(length[1])))
        answers += 1
        if b"connection: close" in head.lower():  # HAProxy, when its configuration has changed
            writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()
    return answers


async def rate(port: int, request: Request, clients: int, seconds: float) -> float:
    for span in (1.0, seconds):  # a warm-up, then the measurement
        start = time.perf_counter()
        answers = await asyncio.gather(*(ask(port, request, start + span) for _ in range(clients)))
    return sum(answers) / (time.perf_counter() - start)


def measure(artifact: Path, request: Request, name: str, seconds: float) -> dict[int, float]:
    flags, environment = CONTENDERS[name]
    command = [sys.executable, "-m", "osa_runtime.cli", "serve", str(artifact), "--http-port", "0", "--grpc-port", "-1"]
    process = subprocess.Popen(
        [*command, *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ | environment
    )
    assert process.stdout is not None
    address = next((match for line in process.stdout if (match := re.search(r"http://[^:]+:(\d+)", line))), None)
    assert address is not None, f"{name} did not start"
    time.sleep(2)  # replicas that came last are let in, and Ray's start is over
    rates = {clients: asyncio.run(rate(int(address[1]), request, clients, seconds)) for clients in CONCURRENCY}
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=Path, nargs="?", default=Path("runs/digits-onnx"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    arguments = parser.parse_args()
    if importlib.util.find_spec("ray") is None:
        print("ray is not installed here; .venv-ray has it after `make test-ray`")
        return
    request, found = Request(arguments.artifact), defaultdict(list)
    for _ in range(arguments.rounds):
        for name in CONTENDERS:
            for clients, value in measure(arguments.artifact, request, name, arguments.seconds).items():
                found[name, clients].append(value)
    print("| requests/s | " + " | ".join(f"c = {clients}" for clients in CONCURRENCY) + " |")
    print("|---|" + "---|" * len(CONCURRENCY))
    for name in CONTENDERS:
        cells = [
            f"{statistics.median(v):.0f} ({min(v):.0f}–{max(v):.0f})" for v in (found[name, c] for c in CONCURRENCY)
        ]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
