"""Checkpoints come back as they were, and say what is wrong when they are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from exponents import normal
from osa_runtime.errors import CheckpointError, InputError, StorageError
from osa_runtime.models import (
    EncoderConfig,
    SkiplessEncoder,
    SkiplessViT,
    ViTConfig,
    load_checkpoint,
    save_checkpoint,
)

SMALL = {"classes": 3, "dim": 8, "depth": 2, "heads": 2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    return save_checkpoint(SkiplessViT(ViTConfig(**SMALL)), tmp_path / "model")


def test_round_trip_of_a_vit(folder: Path) -> None:
    torch.manual_seed(0)
    original = SkiplessViT(ViTConfig(**SMALL))
    loaded = load_checkpoint(folder)
    assert loaded.config == original.config
    assert not loaded.training
    assert torch.equal(loaded(normal(2, 1, 8, 8)), original(normal(2, 1, 8, 8)))


@pytest.mark.parametrize("conditioning", ["none", "spectral"])
def test_round_trip_of_an_encoder(tmp_path: Path, conditioning: str) -> None:
    model = SkiplessEncoder(EncoderConfig(**SMALL, vocabulary=7, conditioning=conditioning, spectral_lambda=2.0))
    tokens = torch.tensor([[1, 2, 3]])
    loaded = load_checkpoint(save_checkpoint(model, tmp_path / "e"))
    assert torch.equal(loaded(tokens), model(tokens))


def test_an_existing_folder_is_replaced_only_when_told(folder: Path) -> None:
    other = SkiplessViT(ViTConfig(**SMALL, attention="softmax"))
    with pytest.raises(StorageError, match="exists already"):
        save_checkpoint(other, folder)
    assert load_checkpoint(folder).config.attention == "osa"
    save_checkpoint(other, folder, replace=True)
    assert load_checkpoint(folder).config.attention == "softmax"
    assert [p.name for p in folder.parent.iterdir()] == ["model"]


def test_a_folder_that_is_no_checkpoint_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    with pytest.raises(StorageError, match=r"it has no config\.json"):
        save_checkpoint(SkiplessViT(ViTConfig(**SMALL)), tmp_path, replace=True)
    assert [p.name for p in tmp_path.iterdir()] == ["precious"]


def test_a_module_of_ones_own_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="got Linear"):
        save_checkpoint(nn.Linear(2, 2), tmp_path / "x")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def edit_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_weights(folder: Path, edit: object) -> None:
    weights = load_file(folder / "model.safetensors")
    edit(weights)  # type: ignore[operator]
    save_file(weights, folder / "model.safetensors")


DAMAGE = {
    "no such folder": (lambda f: (f / "config.json").unlink(), "a checkpoint is a folder with config.json"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "model.safetensors does not exist"),
    "config is not JSON": (lambda f: (f / "config.json").write_text("{"), "cannot be read as JSON"),
    "config is a list": (lambda f: (f / "config.json").write_text("[]"), "must hold an object"),
    "other version": (lambda f: edit_config(f, version=99), "has version 99, this package reads 1"),
    "unknown model": (lambda f: edit_config(f, model="BERT"), "names the model 'BERT'"),
    "unknown field": (lambda f: edit_config(f, config={"classes": 3, "size": 4}), "unknown .*size"),
    "field of a wrong type": (lambda f: edit_config(f, config={"classes": "3"}), "classes must be a whole number"),
    "other sizes": (
        lambda f: edit_config(f, config=SMALL | {"classes": 4}),
        r"head.weight \(file \(3, 8\), model \(4, 8\)\)",
    ),
    "other depth": (lambda f: edit_config(f, config=SMALL | {"depth": 3}), r"missing: stack.blocks.2.* and \d+ more"),
    "absurd width": (lambda f: edit_config(f, config=SMALL | {"dim": 10**7}), "dim=10000000 need more than"),
    "absurd length": (lambda f: edit_config(f, config=SMALL | {"image_size": [2**40, 2**40]}), "not fit into memory"),
    "truncated": (
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-40]),
        "damaged or not a safetensors file",
    ),
    "not safetensors": (lambda f: (f / "model.safetensors").write_bytes(b"\0" * 100), "or not a safetensors file"),
    "a weight too few": (lambda f: edit_weights(f, lambda w: w.pop("head.bias")), "missing: head.bias"),
    "a weight too many": (lambda f: edit_weights(f, lambda w: w.update(extra=torch.ones(1))), "unexpected: extra"),
    "NaN": (lambda f: edit_weights(f, lambda w: w["head.bias"].fill_(float("nan"))), "hold NaN or Inf: head.bias"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_is_named(folder: Path, case: str) -> None:
    damage, message = DAMAGE[case]
    damage(folder)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(folder)


def test_the_folder_of_a_training_run_stands_for_its_checkpoint(folder: Path) -> None:
    run = folder.parent / "run"
    run.mkdir()
    folder.rename(run / "checkpoint")
    assert load_checkpoint(run).config.dim == 8


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StorageError, match="No space left on device"):
        save_checkpoint(SkiplessViT(ViTConfig(**SMALL)), tmp_path / "x")
    assert list(tmp_path.iterdir()) == []
