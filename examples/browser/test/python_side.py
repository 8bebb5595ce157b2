"""The Python side of the page's test.

python_side.py colour OUT          writes the page of an untrained colour model, with bytes as pixels and named classes
python_side.py answers ARTIFACT    reads what the page fed to the model from stdin, and writes ONNX Runtime's answers
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from osa_runtime import SkiplessViT, ViTConfig, load, save_checkpoint
from osa_runtime.pixels import Standardisation


def colour(out: Path) -> None:
    from osa_runtime.exporters import export_checkpoint
    from osa_runtime.packaging.web_page import package_web

    pixels = Standardisation((100.0, 120.0, 140.0), (60.0, 70.0, 80.0), (0.0, 255.0))
    names = ("ankle boot", "ants", "apple tree", "bee", "cat", "dog")
    with tempfile.TemporaryDirectory() as folder:
        config = ViTConfig(classes=6, image_size=(16, 24), channels=3, patch_size=4, dim=32, depth=3, heads=2)
        checkpoint = Path(folder) / "model"
        save_checkpoint(SkiplessViT(config), checkpoint, standardisation=pixels, class_names=names)
        artifact = export_checkpoint(checkpoint, Path(folder) / "model-onnx", pixels="uint8")
        package_web(artifact.folder, out, title="Colours", replace=True)


def answers(artifact: Path) -> None:
    asked = json.load(sys.stdin)
    with load(artifact) as session:
        (spec,) = session.inputs
        images = np.array(asked["values"], spec.dtype).reshape(-1, *spec.shape[1:])
        logits = session.run({spec.name: images})[session.outputs[0].name]
    json.dump({"logits": logits.tolist()}, sys.stdout)


if __name__ == "__main__":
    {"colour": colour, "answers": answers}[sys.argv[1]](Path(sys.argv[2]))
