"""The same model and settings give the same bytes, whatever the run, hash seed, number of threads and folder."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from osa_runtime import EncoderConfig, SkiplessEncoder, SkiplessViT, ViTConfig, save_checkpoint

pytestmark = pytest.mark.slow

SIZES = {"classes": 3, "dim": 8, "heads": 2}

EXPORT_ALL = """
import json, sys, torch
from pathlib import Path
checkpoints, out, threads, history = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
torch.set_num_threads(threads)
if history:  # what a process did before must not show in the names of types and symbols
    layers = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 4), torch.nn.Identity(), torch.nn.GELU())
    torch.jit.script(layers)
    torch.export.export(layers, (torch.ones(2, 3),), dynamic_shapes=({0: torch.export.Dim("rows")},))
from osa_runtime.exporters import export_checkpoint
from osa_runtime.quantization import quantize
for name, options in json.loads(sys.argv[5]):
    export_checkpoint(checkpoints / name, out / json.dumps([name, options]).replace("/", "_"), checked=False, **options)
    if not options:
        for kind in ("none", "dynamic", "static"):
            source, examples = out / json.dumps([name, {}]), checkpoints / "examples.npz"
            quantize(source, out / kind, activations=kind, calibration=examples)
"""

CONFIGURATIONS = [
    ("encoder", {}),
    ("encoder", {"functions": "inline", "squarings": 3}),
    ("encoder", {"format": "pt2"}),
    ("encoder", {"format": "torchscript"}),
    ("vit", {"external_data": True}),
    ("vit", {"dtype": "fp16"}),
    ("vit", {"format": "torchscript"}),
]


def hashes(checkpoints: Path, out: Path, seed: int, threads: int, history: str) -> dict[str, str]:
    command = [sys.executable, "-c", EXPORT_ALL, str(checkpoints), str(out), str(threads), history]
    environment = os.environ | {"PYTHONHASHSEED": str(seed), "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [*command, json.dumps(CONFIGURATIONS)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=checkpoints,
    )
    assert done.returncode == 0, done.stderr
    return {
        f"{path.parent.name}/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(out.rglob("*"))
        if path.is_file()
    }


def test_exports_are_the_same_to_the_byte(tmp_path: Path) -> None:
    torch.manual_seed(0)
    save_checkpoint(SkiplessViT(ViTConfig(image_size=(4, 4), patch_size=2, depth=2, **SIZES)), tmp_path / "vit")
    save_checkpoint(
        SkiplessEncoder(EncoderConfig(vocabulary=11, max_length=40, depth=1, **SIZES)), tmp_path / "encoder"
    )
    tokens = np.random.default_rng(0).integers(0, 11, (16, 9))
    np.savez(tmp_path / "examples.npz", tokens=tokens, mask=tokens > 0)
    first = hashes(tmp_path, tmp_path / "out", 1, 1, "")
    assert len(first) == 2 * len(CONFIGURATIONS) + 1 + 2 * 3
    assert hashes(tmp_path, tmp_path / "a" / "deeper folder", 2, 2, "other models") == first
