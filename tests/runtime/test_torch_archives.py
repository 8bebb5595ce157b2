"""An archive is read in one way, or refused."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from osa_runtime import ArtifactError, load
from osa_runtime.runtime.torch_archives import refuse_ambiguous

CENTRAL, LOCAL, END = b"PK\1\2", b"PK\3\4", b"PK\5\6"


class Scaled(torch.nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * x


def archive(**entries: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as target:
        for name, content in entries.items():
            target.writestr(zipfile.ZipInfo(f"model/{name}"), content)
    return stream.getvalue()


def moved(content: bytes, by: int) -> bytes:
    """The entries of a directory, with other offsets."""
    parts = content.split(CENTRAL)[1:]
    offsets = [struct.unpack_from("<L", part, 38)[0] + by for part in parts]
    return b"".join(
        CENTRAL + part[:38] + struct.pack("<L", offset) + part[42:] for part, offset in zip(parts, offsets, strict=True)
    )


def two_in_one(seen: bytes, run: bytes) -> bytes:
    """``zipfile`` finds the directory right before the end, torch the one that the end record points to."""
    seen_at, run_at = seen.index(CENTRAL), run.index(CENTRAL)
    seen_directory, run_directory = seen[seen_at : seen.index(END)], run[run_at : run.index(END)]
    assert len(seen_directory) == len(run_directory)
    start, size = run_at + seen_at, len(run_directory)
    end = struct.pack("<4s4H2LH", END, 0, 0, *struct.unpack_from("<2H", run, run.index(END) + 8), size, start, 0)
    return run[:run_at] + seen[:seen_at] + run_directory + moved(seen_directory, run_at - size) + end


def test_a_file_of_two_models_is_refused(tmp_path: Path) -> None:
    contents = []
    for factor in (2.0, 3.0):
        torch.jit.script(Scaled(factor)).save(str(tmp_path / "model.pt"))
        with zipfile.ZipFile(tmp_path / "model.pt") as source:
            contents.append({name: source.read(name) for name in source.namelist()})
    seen, run = (archive(**{name.partition("/")[2]: x for name, x in content.items()}) for content in contents)
    (tmp_path / "model.pt").write_bytes(two_in_one(seen, run))
    with zipfile.ZipFile(tmp_path / "model.pt") as found:
        assert found.read("model/data.pkl") == contents[0]["model/data.pkl"]
    assert torch.jit.load(str(tmp_path / "model.pt"))(torch.ones(1)) == 3
    with pytest.raises(ArtifactError, match="read in two ways"):
        load(tmp_path / "model.pt")


def patched(at: bytes, place: int, value: bytes) -> Callable[[bytes], bytes]:
    def patch(content: bytes) -> bytes:
        start = content.index(at) + place
        return content[:start] + value + content[start + len(value) :]

    return patch


@pytest.mark.parametrize(
    "change",
    [
        lambda content: b"\0" + content,
        lambda content: content[:-2] + b"\1\0 ",
        lambda content: content.replace(CENTRAL, b"\0" + CENTRAL, 1),
        lambda content: content.replace(b"model/b", b"model/a"),
        lambda content: content.replace(b"model/b", b"model/A"),
        lambda content: content.replace(b"model/b", b"model/\0"),
        patched(LOCAL, 30, b"xodel/a"),
        patched(LOCAL, 14, b"\0\0\0\0"),
        patched(LOCAL, 22, b"\1"),
        patched(LOCAL, 6, b"\x08"),
        patched(CENTRAL, 8, b"\1"),
        patched(CENTRAL, 42, b"\1"),
        patched(CENTRAL, 24, b"\xff\xff\xff\xff"),
        patched(END, 8, b"\1\0\1\0"),
    ],
    ids=[
        *("prefix", "comment", "gap", "twice", "another case", "end of a name", "local name", "local checksum"),
        *("local size", "local flags", "encrypted", "offset", "a size that is missing", "count"),
    ],
)
def test_what_readers_may_take_differently_is_refused(change: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(archive(a=b"one", b=b"another"))
    refuse_ambiguous(path)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=r"read in two ways|does not end like"):
        refuse_ambiguous(path)


def test_large_archives_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 8)  # what zipfile writes beyond two gigabytes
    (tmp_path / "model.pt").write_bytes(archive(a=b"more than eight", b=b"x"))
    assert b"PK\6\6" in (tmp_path / "model.pt").read_bytes()
    refuse_ambiguous(tmp_path / "model.pt")


def test_archives_of_torch_are_read(tmp_path: Path) -> None:
    torch.jit.script(Scaled(2.0)).save(str(tmp_path / "model.pt"))
    torch.export.save(torch.export.export(Scaled(2.0), (torch.ones(2),)), tmp_path / "model.pt2")
    refuse_ambiguous(tmp_path / "model.pt")
    refuse_ambiguous(tmp_path / "model.pt2")
