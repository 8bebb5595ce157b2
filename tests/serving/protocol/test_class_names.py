"""The names of classes, on their way from the manifest to clients and the page."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osa_runtime.runtime.session import load
from serving_process import ServerProcess
from small_models import CLASSES, export_named

pytestmark = pytest.mark.slow

ROWS = np.eye(4, dtype=np.float32)
DRAW = """
const make = (tag, fields, ...inside) => ({...fields, inside, append(...more) { this.inside.push(...more); }});
const box = bars({data: [0.5, 2, 1]}, JSON.parse(process.argv[1]));
console.log(JSON.stringify(box.inside.map((bar) => [bar.className, bar.inside[0].textContent])));
"""


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_named(tmp_path_factory.mktemp("classes") / "named")


@pytest.fixture(scope="module")
def server(artifact: Path) -> Iterator[ServerProcess]:
    with ServerProcess(artifact) as running:
        yield running


def ask(server: ServerProcess, path: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(f"{server.url}{path}", data, timeout=30) as answer:
        return json.load(answer)


def test_a_classification_says_the_names(server: ServerProcess, artifact: Path) -> None:
    tensor = {"name": "input", "datatype": "FP32", "shape": [4, 4], "data": ROWS.ravel().tolist()}
    wanted = {"name": "logits", "parameters": {"classification": 1}}
    answer = ask(server, "/v2/models/named/infer", {"inputs": [tensor], "outputs": [wanted]})
    best = load(artifact).run({"input": ROWS})["logits"].argmax(1)
    assert [text.split(":")[1:] for text in answer["outputs"][0]["data"]] == [[str(i), CLASSES[i]] for i in best]


def test_the_page_is_told_the_names(server: ServerProcess) -> None:
    assert ask(server, "/details")["models"][0]["class_names"] == list(CLASSES)


@pytest.mark.skipif(shutil.which("node") is None, reason="node runs what the page draws with")
@pytest.mark.parametrize(
    ("names", "shown"), [(CLASSES, CLASSES), ((), ("class 0", "class 1", "class 2")), (("a",), ("class 0",))]
)
def test_the_page_draws_the_names(names: tuple[str, ...], shown: tuple[str, ...], checkout: Path) -> None:
    page = (checkout / "osa_runtime" / "serving" / "rest" / "page.html").read_text()
    bars = re.search(r"^function bars.*?^}", page, re.DOTALL | re.MULTILINE)
    assert bars is not None
    command = ["node", "-e", bars[0] + DRAW, json.dumps(names)]
    drawn = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert [kind for kind, _ in drawn] == ["bar", "bar first", "bar"]
    assert [name for _, name in drawn][: len(shown)] == list(shown)
