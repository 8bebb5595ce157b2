"""Figures: their formats, files that depend on their content alone, and a missing matplotlib."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from osa_runtime import InputError, MissingDependencyError, StorageError
from osa_runtime.plotting import check_figure_path, legend_below, logarithmic, svg_text, write_figure


def draw(figure: Any) -> None:
    axes = figure.subplots()
    axes.plot([1, 10, 100], [1, 2, 3], label="a $x_1$ line")
    logarithmic(axes.xaxis, (1, 10, 100))
    legend_below(figure, axes)


@pytest.mark.parametrize(("name", "start"), [("a.svg", b"<?xml"), ("a.PNG", b"\x89PNG")])
def test_the_same_content_makes_the_same_file(tmp_path: Path, name: str, start: bytes) -> None:
    files = [tmp_path / place / name for place in ("first", "second")]
    for file in files:
        write_figure(file, (3, 2), draw)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert files[0].read_bytes().startswith(start)


def test_names_are_not_formulas_and_ticks_are_plain_numbers() -> None:
    text = svg_text((3, 2), draw, {"svg.fonttype": "none"})
    for shown in ("a $x_1$ line", ">1<", ">10<", ">100<"):
        assert shown in text


@pytest.mark.parametrize("name", ["a.pdf", "a", "png"])
def test_other_formats_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"plot=\S+: expected a name that ends in \.png or \.svg"):
        check_figure_path(Path(name), "plot")


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError):
        check_figure_path(tmp_path / "file" / "a.png", "plot")
    with pytest.raises(StorageError):
        write_figure(tmp_path / "file" / "a.png", (3, 2), draw)


def test_matplotlib_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"Drawing needs matplotlib.*osa-runtime\[train\]"):
        check_figure_path(Path("a.png"), "plot")
