"""Every command that a page shows does what it says: run in order, in a folder that has what the page starts from."""

from __future__ import annotations

import itertools
import shlex
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from osa_runtime import (
    EncoderConfig,
    SkiplessEncoder,
    SkiplessViT,
    Standardisation,
    ViTConfig,
    quantize,
    save_checkpoint,
)
from osa_runtime.exporters import export_checkpoint
from osa_runtime.training import load_dataset
from pages import PAGES, TUTORIAL, blocks, follow

FACTORY = """
import torch
from torch import nn

class Attention(nn.Linear):
    pass

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention(4, 4)

    def forward(self, x):
        return self.attention(x).relu()

def build():
    return nn.Sequential(Block(), nn.Linear(4, 3)), (torch.zeros(2, 4),), {"input": {0: "batch"}}
"""
NOT_HERE = {
    "osa data fetch": "the network",
    "make ": "all of this again",
    "pip install": "the network",
    "osa package web": "the network",
    "python -m http.server": "a server that stays; the page is tested by make test-browser",
    "serve ": "Ray, whose tests have a virtual environment of their own",
}


def run_folder() -> None:
    pixels = Standardisation((4.9,), (6.0,), (0.0, 16.0))
    torch.manual_seed(0)
    save_checkpoint(SkiplessViT(ViTConfig(classes=10, depth=1)), "runs/digits/checkpoint", standardisation=pixels)


def exported(name: str, dtype: str = "fp32") -> None:
    made("runs/digits")
    export_checkpoint("runs/digits", name, dtype=dtype)


def encoder(name: str) -> None:
    model = SkiplessEncoder(EncoderConfig(classes=3, vocabulary=11, max_length=256, dim=16, depth=1, heads=2))
    save_checkpoint(model, f"runs/{name}")
    export_checkpoint(f"runs/{name}", name)


def smaller(name: str) -> None:
    made("digits-onnx")
    made("examples.npz")
    static = {"activations": "static", "calibration": "examples.npz"} if name == "digits-static" else {}
    quantize("digits-onnx", name, **static)


def images(path: str) -> None:
    np.savez(path, images=load_dataset("digits").x_train[:64])


def digits() -> Any:
    from sklearn.datasets import load_digits  # takes a second, and most processes of the tests do without

    return load_digits()


def own_images() -> None:
    np.savez("mine.npz", x=digits().images[:200], y=digits().target[:200])


def own_sequences() -> None:
    random = np.random.default_rng(0)
    lengths = random.integers(2, 9, 60)
    np.savez("sequences.npz", x=random.integers(0, 9, (60, 8)), y=np.arange(60) % 3, lengths=lengths)


def own_module() -> None:
    Path("my_models.py").write_text(FACTORY)
    names: dict[str, Any] = {}
    exec(FACTORY, names)
    torch.manual_seed(0)  # the same weights whenever the module is named
    save_file(names["build"]()[0].state_dict(), "w.safetensors")


def own_artifact() -> None:
    own_module()
    follow(shlex.split("osa export --factory my_models:build --weights w.safetensors --out mine"))


def repository() -> None:
    made("digits-onnx")
    shutil.copytree("digits-onnx", "models/digits/1")


# What pages start from: it is made when a command first names it, unless an earlier one has written it.
MAKERS: dict[str, Callable[[], None]] = {
    "runs/digits": run_folder,
    "digits-onnx": partial(exported, "digits-onnx"),
    "digits-fp16": partial(exported, "digits-fp16", dtype="fp16"),
    "digits-int8": partial(smaller, "digits-int8"),
    "digits-static": partial(smaller, "digits-static"),
    "encoder-onnx": partial(encoder, "encoder-onnx"),
    "words-onnx": partial(encoder, "words-onnx"),
    "mine.npz": own_images,
    "sequences.npz": own_sequences,
    "digits.npz": partial(images, "digits.npz"),
    "examples.npz": partial(images, "examples.npz"),
    "inputs.npz": partial(images, "inputs.npz"),
    "seven.png": lambda: Image.fromarray((digits().images[7] * 15.9).astype(np.uint8)).save("seven.png"),
    "my_models:build": own_module,
    "mine": own_artifact,
    "models": repository,
}


def made(name: str) -> None:
    if name in MAKERS and not Path(name).exists():
        MAKERS[name]()


def commands_of(page: str) -> list[str]:
    lines = [line for block in blocks("console", page) for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith(tuple(NOT_HERE))]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("page", [page for page in PAGES if page != TUTORIAL and commands_of(page)])
def test_every_command_works(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_folder: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("OSA_DATA", str(data_folder))
    for line in commands_of(page):
        words = shlex.split(line, comments=True)
        if not is_for_another_machine(words):
            prepare(words)
            if words[0] == "osa":
                follow(shortened(words))
            else:
                subprocess.run(line, shell=True, check=True, capture_output=True)


def is_for_another_machine(words: list[str]) -> bool:
    device = "--device" in words and "--allow-fallback" not in words and "package" not in words
    return device or any(word.startswith("/etc/") for word in words)


def prepare(words: list[str]) -> None:
    """Make what the command reads. Commands of a page that write one folder are alternatives: each finds it absent."""
    for before, word in itertools.pairwise(words):
        if before == "--out":
            shutil.rmtree(word, ignore_errors=True)
        elif before != "--bisect":
            made(word)
    if "--require-certificate" in words and not Path("digits-onnx/certificate.json").exists():
        follow(shlex.split("osa verify digits-onnx --against runs/digits --certify"))


def shortened(words: list[str]) -> list[str]:
    """Training for one epoch, which shows that the command works."""
    if words[1] != "train":
        return words
    return [*words, "--epochs", "1"]
