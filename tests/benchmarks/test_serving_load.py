"""A short load on our own server, which must answer, and on servers that do not."""

from __future__ import annotations

import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving_load.client import run_block
from serving_load.contest import Served, write_mlp
from serving_load.messages import BadAnswer
from serving_load.servers import Contender, ServerWatch, start_ours

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(write_mlp(tmp_path_factory.mktemp("load") / "mlp"))


@pytest.fixture(scope="module")
def ours(model: Served) -> Iterator[Contender]:
    contender = start_ours("ours", [model.folder])
    with contender.closing:
        yield contender


@pytest.mark.parametrize("protocol", ["binary", "json", "grpc"])
def test_our_server_answers_every_connection(model: Served, ours: Contender, protocol: str) -> None:
    address = ours.grpc if protocol == "grpc" else ours.http
    block = run_block(address, model.questions, protocol, 5, warm_up=0.1, seconds=0.3)
    assert block.rate > 0
    assert 0 < block.median <= block.p99


def test_memory_is_that_of_a_process(ours: Contender) -> None:
    assert 10 < ours.memory() < 1000


class Liar(socketserver.BaseRequestHandler):
    """Answers every request with the same wrong numbers."""

    def handle(self) -> None:
        body = b'{"outputs": [{"data": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]}]}'
        while self.request.recv(1 << 16):
            self.request.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)


def test_wrong_answers_give_no_figure(model: Served) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Liar) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(BadAnswer, match="not the model's"):
            run_block(server.server_address, model.questions, "json", 2, 0.05, 0.1)
        server.shutdown()


def test_the_mlp_is_served_under_the_name_of_its_folder(model: Served, tmp_path: Path) -> None:
    assert model.name == "mlp"
    assert len({question.array.tobytes() for question in model.questions}) == len(model.questions)


def test_work_is_counted_where_it_is_done() -> None:
    script = "import time\nwhile time.process_time() < 0.5: pass\nprint('done', flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        watch = ServerWatch(child.pid)
        assert child.stdout is not None
        child.stdout.readline()
        used, others = watch.look()
        child.communicate(b"\n")
    assert 0.2 < used < 2
    assert others >= 0
