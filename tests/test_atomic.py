"""Nobody ever sees half a file or half a folder, whatever goes wrong."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from osa_runtime.atomic import atomic_file, atomic_folder, check_replaceable, check_writable
from osa_runtime.errors import InputError, StorageError


def fill(folder: Path, text: str = "new") -> None:
    (folder / "part").write_text(text)


def existing_folder(path: Path) -> Path:
    path.mkdir()
    fill(path, "old")
    return path


class TestFile:
    def test_appears_with_its_content(self, tmp_path: Path) -> None:
        with atomic_file(tmp_path / "a.json") as temporary:
            temporary.write_text("new")
            assert not (tmp_path / "a.json").exists()
        assert [p.name for p in tmp_path.iterdir()] == ["a.json"]
        assert (tmp_path / "a.json").read_text() == "new"

    def test_temporary_has_the_suffix_of_the_target(self, tmp_path: Path) -> None:
        with atomic_file(tmp_path / "picture.png") as temporary:
            assert temporary.suffix == ".png"

    def test_creates_missing_parents(self, tmp_path: Path) -> None:
        with atomic_file(tmp_path / "x" / "y" / "a") as temporary:
            temporary.write_text("new")
        assert (tmp_path / "x" / "y" / "a").read_text() == "new"

    def test_replaces_an_existing_file(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_text("old")
        with atomic_file(tmp_path / "a") as temporary:
            temporary.write_text("new")
        assert (tmp_path / "a").read_text() == "new"

    @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
    def test_failure_midway_leaves_the_old_file_and_nothing_else(
        self, tmp_path: Path, error: type[BaseException]
    ) -> None:
        (tmp_path / "a").write_text("old")
        with pytest.raises(error), atomic_file(tmp_path / "a") as temporary:
            temporary.write_text("half")
            raise error
        assert [p.read_text() for p in tmp_path.iterdir()] == ["old"]

    def test_parent_that_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "plain").write_text("")
        with pytest.raises(StorageError, match=r"Cannot write .*plain"), atomic_file(tmp_path / "plain" / "a"):
            pytest.fail("must not get here")

    def test_target_that_is_a_folder(self, tmp_path: Path) -> None:
        existing_folder(tmp_path / "a")
        with pytest.raises(StorageError, match="directory"), atomic_file(tmp_path / "a") as temporary:
            temporary.write_text("new")
        assert [p.name for p in tmp_path.iterdir()] == ["a"]

    def test_full_disk(self, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match="No space left"), atomic_file(tmp_path / "a"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        assert list(tmp_path.iterdir()) == []

    def test_mode_follows_the_umask(self, tmp_path: Path) -> None:
        (tmp_path / "ordinary").write_text("")
        with atomic_file(tmp_path / "a") as temporary:
            temporary.write_text("")
        assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == stat.S_IMODE((tmp_path / "ordinary").stat().st_mode)


class TestFolder:
    def test_appears_complete(self, tmp_path: Path) -> None:
        with atomic_folder(tmp_path / "run") as temporary:
            fill(temporary)
            assert not (tmp_path / "run").exists()
        assert [p.name for p in tmp_path.iterdir()] == ["run"]
        assert (tmp_path / "run" / "part").read_text() == "new"

    def test_refuses_an_existing_folder(self, tmp_path: Path) -> None:
        run = existing_folder(tmp_path / "run")
        with pytest.raises(StorageError, match=r"exists already.*replace=True"), atomic_folder(run):
            pytest.fail("must not get here")
        assert (run / "part").read_text() == "old"

    def test_replaces_the_whole_folder(self, tmp_path: Path) -> None:
        run = existing_folder(tmp_path / "run")
        (run / "stale").write_text("")
        with atomic_folder(run, replace=True, marker="part") as temporary:
            fill(temporary)
        assert [p.name for p in run.iterdir()] == ["part"]
        assert [p.name for p in tmp_path.iterdir()] == ["run"]

    @pytest.mark.parametrize("marker", [None, "manifest.json"])
    def test_what_is_not_ours_is_never_replaced(self, tmp_path: Path, marker: str | None) -> None:
        run = existing_folder(tmp_path / "run")
        with pytest.raises(StorageError, match="will not be replaced"), atomic_folder(run, replace=True, marker=marker):
            pytest.fail("must not get here")
        (tmp_path / "plain").write_text("old")
        with pytest.raises(StorageError, match="files are never"), atomic_folder(tmp_path / "plain", replace=True):
            pytest.fail("must not get here")
        assert (run / "part").read_text() == (tmp_path / "plain").read_text() == "old"

    def test_what_appears_in_the_meantime_is_kept(self, tmp_path: Path) -> None:
        with pytest.raises(StorageError, match="exists already"), atomic_folder(tmp_path / "run") as temporary:
            fill(temporary)
            existing_folder(tmp_path / "run")
        assert (tmp_path / "run" / "part").read_text() == "old"
        assert [p.name for p in tmp_path.iterdir()] == ["run"]

    def test_an_empty_folder_is_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "run").mkdir()
        with atomic_folder(tmp_path / "run", replace=True) as temporary:
            fill(temporary)
        assert (tmp_path / "run" / "part").read_text() == "new"

    @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
    def test_failure_midway_leaves_the_old_folder_and_nothing_else(
        self, tmp_path: Path, error: type[BaseException]
    ) -> None:
        run = existing_folder(tmp_path / "run")
        with pytest.raises(error), atomic_folder(run, replace=True, marker="part") as temporary:
            fill(temporary)
            raise error
        assert (run / "part").read_text() == "old"
        assert [p.name for p in tmp_path.iterdir()] == ["run"]

    def test_failing_swap_brings_the_old_folder_back(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run = existing_folder(tmp_path / "run")
        rename = os.replace
        calls: list[None] = []

        def fails_at_the_second_rename(source: Path, target: Path) -> None:
            calls.append(None)
            if len(calls) == 2:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            rename(source, target)

        with (
            pytest.raises(StorageError, match="Input/output"),
            atomic_folder(run, replace=True, marker="part") as temporary,
        ):
            fill(temporary)
            monkeypatch.setattr(os, "replace", fails_at_the_second_rename)
        assert (run / "part").read_text() == "old"
        assert [p.name for p in tmp_path.iterdir()] == ["run"]

    def test_full_disk_while_filling(self, tmp_path: Path) -> None:
        with (
            pytest.raises(StorageError, match="No space left"),
            atomic_folder(tmp_path / "run"),
            open("/dev/full", "w") as full,
        ):
            full.write("x")
            full.flush()
        assert list(tmp_path.iterdir()) == []

    def test_parent_that_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "plain").write_text("")
        with pytest.raises(StorageError, match="Cannot write"), atomic_folder(tmp_path / "plain" / "run"):
            pytest.fail("must not get here")


KILLED = """
import os, signal, sys
from osa_runtime.atomic import atomic_folder
with atomic_folder(sys.argv[1]) as folder:
    (folder / "half").write_text("written")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed_by_the_next_writer(tmp_path: Path) -> None:
    target = tmp_path / "out"
    subprocess.run([sys.executable, "-c", KILLED, str(target)], check=False)
    assert not target.exists()
    assert len(list(tmp_path.iterdir())) == 1
    with atomic_folder(target) as folder:
        (folder / "whole").touch()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_the_temporary_of_a_living_process_is_left_alone(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "out") as first, atomic_file(tmp_path / "out.txt") as second:
        with atomic_folder(tmp_path / "out") as rival:
            assert first.exists()
            assert rival != first
        assert second.exists()
        (tmp_path / "out").rmdir()


def test_a_folder_that_was_moved_aside_when_its_process_was_killed_comes_back(tmp_path: Path) -> None:
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    aside = tmp_path / f".out.{int(gone.stdout)}-abc.old"
    aside.mkdir()
    (aside / "precious").touch()
    with pytest.raises(StorageError, match="exists already"), atomic_folder(tmp_path / "out"):
        pass
    assert (tmp_path / "out" / "precious").exists()


UNWRITABLE = {"under a file": "file/x.json", "deep under a file": "file/a/b/x.json", "no file system": "/proc/x.json"}


@pytest.mark.parametrize("name", [*UNWRITABLE.values(), "x" * 300 + ".json"], ids=[*UNWRITABLE, "long"])
def test_what_cannot_be_written_is_known_before_the_work(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="Cannot write"):
        check_writable(tmp_path / name)
    with pytest.raises(StorageError, match="Cannot write"):
        check_replaceable(tmp_path / name, replace=True, marker="m")
    with pytest.raises(InputError, match="is a folder; expected the name of a file"):
        check_writable(tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]


def test_what_can_be_written_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("old")
    for name in ("old.json", "new.json", "a/b/new.json"):
        check_writable(tmp_path / name)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("old.json", "old")]
