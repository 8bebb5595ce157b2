"""The declarations of a factory go into the manifest, or are refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from osa_runtime.artifact import Artifact
from osa_runtime.errors import ExportError, InputError, OsaError
from osa_runtime.exporters.factory import export_factory

FACTORY = """
import torch
from torch import nn

class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, images, level):
        return self.inner(images.flatten(1)) * level[:, None]

def build():
    examples = (torch.rand(2, 1, 2, 2), torch.ones(2, dtype=torch.int64))
    return Scaled(), examples, {"images": {0: "batch"}, "level": {0: "batch"}}, FACTS
"""
PIXELS = {"mean": [0.5], "std": [0.25], "pixels": [0, 1]}
FACTS: dict[str, Any] = {
    "output_names": ["logits"],
    "class_names": ["cat", "dog", "ox"],
    "preprocessing": {"images": PIXELS},
    "value_ranges": {"level": {"min": 1, "max": 5}},
}


def exported(facts: object, here: Path, monkeypatch: pytest.MonkeyPatch) -> Artifact:
    monkeypatch.chdir(here)
    monkeypatch.delitem(sys.modules, "facts_of_mine", raising=False)
    (here / "facts_of_mine.py").write_text(f"{FACTORY}\nFACTS = {facts!r}\n")
    return export_factory("facts_of_mine:build", None, here / "a", format="torchscript")


def test_the_manifest_has_what_the_factory_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = exported(FACTS, tmp_path, monkeypatch).manifest
    assert manifest.class_names == ("cat", "dog", "ox")
    assert manifest.preprocessing == {"images": {"formula": "(pixel - mean) / std"} | PIXELS}
    assert manifest.values == {"level": {"min": 1, "max": 5}}
    assert [str(spec) for spec in manifest.outputs] == ["logits: float32[batch, 3]"]
    assert manifest.source == {"factory": "facts_of_mine:build"}


@pytest.mark.parametrize(
    ("changed", "kind", "message"),
    [
        ({"class_names": ["cat", "dog"]}, InputError, "class_names has 2 names, but the last axis of the logits"),
        ({"class_names": ["cat", "dog", "dog"]}, InputError, "class_names must be distinct texts"),
        ({"class_names": ["cat", "dog", 3]}, InputError, "class_names must be distinct texts"),
        ({"preprocessing": {"pictures": PIXELS}}, InputError, "preprocessing names the input 'pictures'"),
        ({"preprocessing": {"images": {"mean": [0.5]}}}, ExportError, "preprocessing is .* expected {input"),
        ({"preprocessing": ["images"]}, ExportError, "preprocessing is .* expected {input"),
        (
            {"value_ranges": {"levels": {"min": 1, "max": 5}}},
            InputError,
            "a range of 'levels', .* whole numbers: level",
        ),
        ({"value_ranges": {"images": {"min": 1, "max": 5}}}, InputError, "a range of 'images', which is not an input"),
        ({"value_ranges": {"level": {"min": 5, "max": 1}}}, InputError, "values of 'level' is"),
        ({"value_ranges": {"level": {"max": 1}}}, InputError, "values of 'level' is"),
        ({"value_ranges": {"level": {"min": 0.5, "max": 1}}}, InputError, "values of 'level' is"),
        ({"value_ranges": ["level"]}, InputError, "values must map names of inputs"),
        ({"labels": ["cat"]}, ExportError, "the fourth part may have input_names, .* got .*labels"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_true_is_refused(
    changed: dict[str, Any], kind: type[OsaError], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(kind, match=message):
        exported(FACTS | changed, tmp_path, monkeypatch)
    assert not (tmp_path / "a").exists()
