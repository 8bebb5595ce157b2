"""Bit flips and truncation in model files and manifests: our error or an answer, never a crash or a traceback."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from osa_runtime import ArtifactError, load

Exported = Callable[[str, str], Path]

# In a process of its own: a crash of a runtime must be a failed test and not the end of all tests.
SCRIPT = """
import random, sys
from pathlib import Path
import numpy as np
from osa_runtime import OsaError, load

folder, name, cases = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
whole, generator = (folder / name).read_bytes(), random.Random(0)
feeds = {"tokens": np.ones((2, 5), np.int64), "mask": np.ones((2, 5), bool)}
refused = 0
for case in range(cases):
    damaged = bytearray(whole)
    if case % 8 == 0:
        del damaged[generator.randrange(len(damaged)) :]
    else:
        damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
    (folder / name).write_bytes(damaged)
    try:
        load(folder, threads=1, check_hash=False).run(feeds)
    except OsaError as error:
        assert len(str(error)) > 20, error
        refused += 1
print(refused)
"""


@pytest.mark.parametrize(
    ("kind", "file", "cases"),
    [
        ("onnx", "model.onnx", 80),
        ("torchscript", "model.pt", 30),
        ("pt2", "model.pt2", 5),  # each takes half a second
        ("onnx", "manifest.json", 100),
    ],
)
def test_damage_is_an_error_or_an_answer(exported: Exported, tmp_path: Path, kind: str, file: str, cases: int) -> None:
    folder = shutil.copytree(exported("encoder", kind), tmp_path / "a")
    command = [sys.executable, "-c", SCRIPT, str(folder), file, str(cases)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert child.returncode == 0, child.stderr
    assert int(child.stdout) >= cases // 8


def test_damage_is_found_by_its_hash(exported: Exported, tmp_path: Path) -> None:
    folder = shutil.copytree(exported("vit", "onnx"), tmp_path / "a")
    whole = (folder / "model.onnx").read_bytes()
    for place in range(0, len(whole), len(whole) // 16):
        (folder / "model.onnx").write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ArtifactError, match="its hash differs from the manifest's"):
            load(folder)


class Payload:
    """A pickle that would run code while it is read."""

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return sys.exit, ("the pickle was read",)


def rewritten(archive: Path, out: Path, change: Callable[[str, bytes], bytes], extra: dict[str, bytes]) -> None:
    with zipfile.ZipFile(archive) as source, zipfile.ZipFile(out, "w") as target:
        for name in source.namelist():
            target.writestr(name, change(name, source.read(name)))
        for name, content in extra.items():
            target.writestr(name, content)


def as_pickled(name: str, content: bytes) -> bytes:
    if not name.endswith("model_weights_config.json"):
        return content
    fields = json.loads(content)
    next(iter(fields["config"].values()))["use_pickle"] = True
    return json.dumps(fields).encode()


@pytest.mark.parametrize(
    ("change", "extra", "message"),
    [
        (lambda name, content: content, {}, None),
        (as_pickled, {}, "declares pickled weights"),
        (
            lambda name, content: pickle.dumps(Payload()) if "sample_inputs" in name else content,
            {},
            "cannot be read as pt2",
        ),
        (lambda name, content: content, {"model/data/constants/opaque_obj_0": b""}, "it holds the object"),
    ],
    ids=["as it was", "weights", "examples", "objects"],
)
def test_pickles_in_a_pt2_file_are_not_read(
    exported: Exported,
    tmp_path: Path,
    change: Callable[[str, bytes], bytes],
    extra: dict[str, bytes],
    message: str | None,
) -> None:
    rewritten(exported("vit", "pt2") / "model.pt2", tmp_path / "model.pt2", change, extra)
    if message is None:
        load(tmp_path / "model.pt2").close()
        return
    with pytest.raises(ArtifactError, match=message):
        load(tmp_path / "model.pt2")
