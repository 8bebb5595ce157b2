"""Manifests that say something else than their models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sabotaged import Breaking, Sabotage

from osa_runtime.artifact import MANIFEST_FILE


def manifest(change: Callable[[dict[str, Any]], None]) -> Breaking:
    def breaking(source: Path, out: Path) -> Path:
        shutil.copytree(source, out)
        path = out / MANIFEST_FILE
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))
        return out

    return breaking


def exchange_layers(content: dict[str, Any]) -> None:
    first, second = content["attentions"][:2]
    first["name"], second["name"] = second["name"], first["name"]


OF_MANIFESTS = [
    Sabotage(
        "preprocessing changed in the manifest",
        "vit",
        manifest(lambda m: m["preprocessing"]["images"].update(mean=[0.5])),
        "preprocessing",
    ),
    Sabotage("the precision changed in the manifest", "vit", manifest(lambda m: m.update(depth=4000)), "depth"),
    Sabotage(
        "the range changed in the manifest",
        "vit",
        manifest(lambda m: m["osa"].update(largest_norm=1.0)),
        "osa|exported for",
    ),
    Sabotage("a narrower axis in the manifest", "words", manifest(lambda m: m["axes"]["tokens"].update(max=8)), "axes"),
    Sabotage(
        "another standard deviation", "vit", manifest(lambda m: m["preprocessing"]["images"].update(std=[0.29])), "std"
    ),
    Sabotage(
        "a wider range of pixels",
        "vit",
        manifest(lambda m: m["preprocessing"]["images"].update(pixels=[0.0, 255.0])),
        "pixels",
    ),
    Sabotage(
        "names of classes that nobody gave",
        "vit",
        manifest(lambda m: m.update(class_names=list("9876543210"))),
        "class_names",
    ),
    Sabotage("fewer ids in the manifest", "words", manifest(lambda m: m["values"]["tokens"].update(max=5)), "values"),
    Sabotage(
        "a layer of attention left out of the manifest", "vit", manifest(lambda m: m["attentions"].pop()), "attentions"
    ),
    Sabotage("layers of attention exchanged in the manifest", "vit", manifest(exchange_layers), "attentions"),
]
