"""Several processes on one port: their figures are one, and what happens to one of them does not affect the others."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from osa_runtime.serving.engine.statistics import ModelStatistics, Phases, Snapshot, together
from serving_process import ServerProcess

pytestmark = pytest.mark.slow

BODY = {"inputs": [{"name": "images", "datatype": "FP32", "shape": [1, 1, 8, 8], "data": [0.5] * 64}]}
Exported = Callable[[str, str], Path]


@pytest.fixture(scope="module")
def pair(exported: Exported) -> Iterator[ServerProcess]:
    with ServerProcess(exported("vit", "onnx"), "--workers", "2") as running:
        yield running


def ask(server: ServerProcess, path: str, body: object = None) -> Any:
    """On a connection of its own, which either worker may get."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(f"{server.url}{path}", data, timeout=30) as answer:
        content = answer.read()
    return json.loads(content) if content[:1] in (b"{", b"[") else content.decode()


def infer(server: ServerProcess) -> Any:
    return ask(server, "/v2/models/vit-onnx/infer", BODY)["outputs"]


def status(server: ServerProcess) -> int:
    try:
        infer(server)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    return 200


def counted(server: ServerProcess) -> int:
    found = re.search(r"^osa_serve_requests_total\{.*\} (.*)$", ask(server, "/metrics"), re.MULTILINE)
    return int(float(found[1])) if found else 0


def workers(server: ServerProcess) -> list[int]:
    text = subprocess.run(
        ["pgrep", "-P", str(server.process.pid), "-f", "spawn_main"], capture_output=True, text=True, check=False
    ).stdout
    return [int(line) for line in text.split()]


def test_the_figures_are_one(pair: ServerProcess) -> None:
    before = counted(pair)
    answers = [infer(pair) for _ in range(24)]
    assert all(answer == answers[0] for answer in answers)
    assert [counted(pair) - before for _ in range(6)] == [24] * 6
    statistics = [ask(pair, "/v2/models/vit-onnx/stats")["model_stats"][0] for _ in range(6)]
    assert {entry["inference_count"] - before for entry in statistics} == {24}
    assert {ask(pair, "/details")["models"][0]["requests"] - before for _ in range(4)} == {24}


def test_a_worker_that_is_killed_loses_only_what_it_had(pair: ServerProcess) -> None:
    infer(pair)
    known = counted(pair)
    before, restarts = workers(pair), pair.count("worker started again")
    assert len(before) == 2
    os.kill(before[0], signal.SIGKILL)
    pair.wait_for("worker ended", after=restarts)  # what it had accepted is what it had
    assert [status(pair) for _ in range(20)] == [200] * 20
    pair.wait_for("worker started again", after=restarts)
    after = workers(pair)
    assert len(after) == 2
    assert before[1] in after
    assert counted(pair) == known + 20  # of the dead one, what it had counted when it was last asked


def test_loading_and_unloading_reach_every_worker(pair: ServerProcess) -> None:
    ask(pair, "/v2/repository/models/vit-onnx/unload", {})
    assert [status(pair) for _ in range(12)] == [404] * 12
    restarts = pair.count("worker started again")
    os.kill(workers(pair)[0], signal.SIGKILL)
    pair.wait_for("worker started again", after=restarts)
    assert [status(pair) for _ in range(12)] == [404] * 12
    os.kill(workers(pair)[0], signal.SIGKILL)
    pair.wait_for("worker ended", after=restarts + 1)
    ask(pair, "/v2/repository/models/vit-onnx/load", {})  # while one of them is starting
    pair.wait_for("worker started again", after=restarts + 1)
    assert [status(pair) for _ in range(12)] == [200] * 12


def test_a_load_that_fails_is_said_by_whoever_is_asked(pair: ServerProcess) -> None:
    for _ in range(4):
        with pytest.raises(urllib.error.HTTPError) as caught:
            ask(pair, "/v2/repository/models/none/load", {})
        caught.value.close()
        assert caught.value.code == 404


def test_all_end_with_the_parent_and_answer_first(exported: Exported) -> None:
    with ServerProcess(exported("vit", "onnx"), "--workers", "2", "--max-delay-ms", "700") as server:
        answers: list[int] = []
        asking = [threading.Thread(target=lambda: answers.append(status(server))) for _ in range(6)]
        for thread in asking:
            thread.start()
        time.sleep(0.3)
        ids = workers(server)
        assert server.stop() == 0
        for thread in asking:
            thread.join()
        assert answers == [200] * 6
        assert not any(alive(pid) for pid in ids)


def test_workers_do_not_outlive_a_parent_that_is_killed(exported: Exported) -> None:
    with ServerProcess(exported("vit", "onnx"), "--workers", "2") as server:
        ids = workers(server)
        server.process.kill()
        server.process.wait()
        wait_for_end(ids)


def wait_for_end(ids: list[int]) -> None:
    deadline = time.monotonic() + 20
    while any(alive(pid) for pid in ids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(alive(pid) for pid in ids)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def serve(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "osa_runtime.cli", "serve", *map(str, arguments), "--workers", "2"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_port_that_others_share_is_taken(pair: ServerProcess, exported: Exported) -> None:
    port = pair.http.rsplit(":", 1)[1]
    done = serve(exported("vit", "onnx"), "--http-port", port, "--grpc-port", "-1")
    assert done.returncode == 3
    assert f"Cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_what_cannot_be_served_is_said_once(tmp_path: Path) -> None:
    done = serve(tmp_path, "--http-port", "0", "--grpc-port", "-1")
    assert done.returncode == 3
    assert done.stderr.count("error:") == 1
    assert "Traceback" not in done.stderr


def test_an_open_address_is_warned_of_once(exported: Exported) -> None:
    with ServerProcess(exported("vit", "onnx"), "--workers", "2", "--host", "0.0.0.0") as running:
        assert running.count("other machines can reach this server, and no token is required") == 1


def test_figures_of_two_add_up() -> None:
    pages = [ModelStatistics(), ModelStatistics()]
    for number, page in enumerate(pages):
        for rows in (1, 2 + number):
            page.add_batch(rows, Phases(0.1, 0.2, 0.3))
            page.add_success(0.01, 0.001, Phases(0.1, 0.2, 0.3))
        page.add_failure(0.5, 400 + number)
    key = "m", 1
    total = together(Snapshot({key: pages[0]}, connections=2), Snapshot({key: pages[1]}, connections=3))
    page = total.page(key)
    assert (page.rows, page.executions, page.success.count, page.fail.count) == (7, 4, 4, 2)
    assert {rows: batch.count for rows, batch in page.batches.items()} == {1: 2, 2: 1, 3: 1}
    assert page.batches[1].run == pytest.approx(0.4)
    assert page.failures == {400: 1, 401: 1}
    assert page.latency.cumulative()[-1] == ("+Inf", 4.0)
    assert total.connections == 5
    assert pages[0].rows == 3  # the parts are as they were
