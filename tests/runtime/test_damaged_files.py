"""Damaged, malformed and truncated model files and manifests: our error or an answer, never a crash or a hang."""

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
from osa_runtime.formats import FORMATS
from small_models import FORMATS as NAMES

Exported = Callable[[str, str], Path]

# In a process of its own: a crash of a runtime must be a failed test and not the end of all tests. Each case has a time
# limit, too: the alarm kills the process, even inside a runtime's own code. The last line on stderr names the case.
PREPARED = """
import functools, json, random, signal, sys
from pathlib import Path
import numpy as np
from osa_runtime import OsaError, load
from osa_runtime.runtime import onnx_session, torch_session

folder, name = Path(sys.argv[1]), sys.argv[2]
feeds = {"tokens": np.ones((2, 5), np.int64), "mask": np.ones((2, 5), bool)}
if name == "manifest.json":  # the model is whole, and reading it takes longer than all the rest
    torch_session.read_pt2 = functools.lru_cache(torch_session.read_pt2)
    torch_session.read_torchscript = functools.lru_cache(torch_session.read_torchscript)
    create, made = onnx_session.OnnxSession._create, []
    onnx_session.OnnxSession._create = lambda *given: (made or made.append(create(*given)) or made)[0]

def refuses(case, content):
    print(case, file=sys.stderr, flush=True)
    (folder / name).write_bytes(content)
    signal.alarm(30)
    try:
        load(folder, threads=1, check_hash=False).run(feeds)
    except OsaError as error:
        assert len(str(error)) > 20, error
        return True
    finally:
        signal.alarm(0)
    return False
"""

AT_RANDOM = (
    PREPARED
    + """
def damaged(whole, generator):
    content, place = bytearray(whole), generator.randrange(len(whole))
    kind = generator.choice(["cut", "flip", "flip", "flip", "zero", "noise", "insert", "remove"])
    length = 1 + generator.randrange(64)
    if kind == "cut":
        del content[place:]
    elif kind == "flip":
        content[place] ^= 1 << generator.randrange(8)
    elif kind == "zero":
        content[place : place + length] = bytes(len(content[place : place + length]))
    elif kind == "noise":
        content[place : place + length] = generator.randbytes(len(content[place : place + length]))
    elif kind == "insert":
        content[place:place] = generator.randbytes(length)
    else:
        del content[place : place + length]
    return kind, bytes(content)

whole, generator = (folder / name).read_bytes(), random.Random(int(sys.argv[4]))
refused = 0
for number in range(int(sys.argv[3])):
    kind, content = damaged(whole, generator)
    refused += refuses(f"{number}: {kind}", content)
print(refused)
"""
)

# What is certainly no model, or no manifest: always refused.
MALFORMED = (
    PREPARED
    + """
import io, zipfile

def archive(**members):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as target:
        for member, content in members.items():
            target.writestr(member.replace("__", "/"), content)
    return stream.getvalue()

whole = (folder / name).read_bytes()
cases = {
    "empty": b"", "one byte": b"\\0", "zeros": bytes(10_000), "ones": b"\\xff" * 10_000, "text": b"not a model" * 99,
    "noise": random.Random(0).randbytes(100_000), "half": whole[: len(whole) // 2], "a JSON number": b"17",
    "JSON of nothing": b"{}", "a JSON list": b"[]", "deep JSON": b"[" * 100_000, "UTF-16": "{}".encode("utf-16"),
    "an empty archive": archive(), "an archive of something": archive(model__data="x"),
    "an archive with a version": archive(model__version="3", model__data__pkl="x", model__constants__pkl="x"),
    "half an archive": archive(model__data="x" * 1000)[:500], "an archive that ends early": archive(a="x")[:-4],
    "a pt2 archive of nothing": archive(model__archive_format="pt2", model__archive_version="0"),
}
for other in sorted(Path(sys.argv[3]).glob("*/model.*")) + sorted(Path(sys.argv[3]).glob("*/manifest.json")):
    if other.suffix != (folder / name).suffix:
        cases[f"another's {other.name}"] = other.read_bytes()
for case, content in cases.items():
    assert refuses(case, content), f"{case} was accepted"
print(len(cases))
"""
)

# Every field of a manifest missing, or of another kind.
FIELDS = (
    PREPARED
    + """
def paths(value, at=()):
    if at:
        yield at
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from paths(inner, (*at, key))

def changed(fields, path, change):
    copy = json.loads(json.dumps(fields))
    holder = functools.reduce(lambda inner, key: inner[key], path[:-1], copy)
    change(holder, path[-1])
    return json.dumps(copy).encode()

def put(value):
    return lambda holder, key: holder.__setitem__(key, value)

values = [None, True, -1, 0, 2**70, 1.5, float("inf"), "", "x", "../../x", [], [[]], {}, {"a": []}]
changes = {"removed": lambda holder, key: holder.pop(key)} | {repr(value): put(value) for value in values}
fields = json.loads((folder / name).read_text())
count = refused = 0
for path in paths(fields):
    for kind, change in changes.items():
        count += 1
        refused += refuses(f"{path} {kind}", changed(fields, path, change))
print(count, refused)
"""
)


def run_apart(script: str, *arguments: object) -> list[int]:
    """The numbers that the script prints; a crash, a hang and any error that is not ours fail the test."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert child.returncode == 0, f"exit code {child.returncode}: {child.stderr[-3000:]}"
    return [int(number) for number in child.stdout.split()]


@pytest.mark.parametrize(
    ("kind", "file", "cases"),
    [
        ("onnx", "model.onnx", 120),
        ("torchscript", "model.pt", 60),
        ("pt2", "model.pt2", 12),  # each takes half a second or more
        ("onnx", "manifest.json", 60),
        ("torchscript", "manifest.json", 60),
        ("pt2", "manifest.json", 60),
    ],
    ids=str,
)
def test_damage_is_an_error_or_an_answer(exported: Exported, tmp_path: Path, kind: str, file: str, cases: int) -> None:
    folder = shutil.copytree(exported("encoder", kind), tmp_path / "a")
    (refused,) = run_apart(AT_RANDOM, folder, file, cases, 0)
    assert refused >= cases // 8


@pytest.mark.parametrize("file", ["the model", "manifest.json"])
@pytest.mark.parametrize("kind", NAMES)
def test_what_is_no_model_or_manifest_is_refused(exported: Exported, tmp_path: Path, kind: str, file: str) -> None:
    others = [exported("encoder", other) for other in NAMES]
    folder = shutil.copytree(exported("encoder", kind), tmp_path / "a")
    name = FORMATS[kind].file if file == "the model" else file
    (count,) = run_apart(MALFORMED, folder, name, others[0].parent)
    assert count >= 20


@pytest.mark.parametrize("kind", NAMES)
def test_every_field_of_a_manifest_may_be_wrong(exported: Exported, tmp_path: Path, kind: str) -> None:
    folder = shutil.copytree(exported("encoder", kind), tmp_path / "a")
    count, refused = run_apart(FIELDS, folder, "manifest.json")
    assert count > 500
    assert refused > count // 2


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


def with_text(change: Callable[[dict], None]) -> Callable[[str, bytes], bytes]:
    def rewrite(name: str, content: bytes) -> bytes:
        if not name.endswith("models/model.json"):
            return content
        program = json.loads(content)
        change(program)
        return json.dumps(program).encode()

    return rewrite


CODE = "__import__('sys').exit('the code was run')"


def code_as_guard(program: dict) -> None:
    program["guards_code"] = [f"{CODE} is None"]


def code_as_size(program: dict) -> None:
    values = program["graph_module"]["graph"]["tensor_values"]
    values["metadata"] = {"sizes": [{"as_expr": {"expr_str": CODE, "hint": None}}]}


def code_as_name(program: dict) -> None:
    program["graph_module"]["graph"]["inputs"][-1]["as_tensor"]["name"] = f"x={CODE}"


@pytest.mark.parametrize(
    ("change", "extra", "message"),
    [
        (lambda name, content: content, {}, None),
        (with_text(code_as_guard), {}, "is not arithmetic of sizes"),
        (with_text(code_as_size), {}, "is not arithmetic of sizes"),
        (with_text(code_as_name), {}, "is not a name"),
        (lambda name, content: content, {"model/data/aotinductor/model/a.so": b""}, "compiled code would run"),
        (as_pickled, {}, "declares pickled weights"),
        (
            lambda name, content: pickle.dumps(Payload()) if "sample_inputs" in name else content,
            {},
            "cannot be read as pt2",
        ),
        (lambda name, content: content, {"model/data/constants/opaque_obj_0": b""}, "it holds the object"),
    ],
    ids=["as it was", "guard", "size", "name", "compiled", "weights", "examples", "objects"],
)
def test_no_code_in_a_pt2_file_is_run(
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
