"""Every configuration in every format agrees with eager, at sizes that the capture has not seen."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch import Tensor, nn

from exponents import normal
from made_once import export_checkpoint
from osa_runtime import exporters
from osa_runtime.artifact import Artifact
from osa_runtime.exporters.acceptance import artifact_runner
from osa_runtime.models import EncoderConfig, SkiplessEncoder, SkiplessViT, ViTConfig, load_checkpoint, save_checkpoint
from osa_runtime.parity import compare_arrays, relative_tolerance

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {"classes": 5, "dim": 16, "depth": 1, "heads": 2, "alpha": 0.3}
ORDINARY = {"residual": True, "norm": True}
MODELS: dict[str, ViTConfig | EncoderConfig] = {
    "vit osa": ViTConfig(**SMALL),
    "vit osa spectral": ViTConfig(**SMALL, conditioning="spectral", spectral_lambda=2.0),
    "vit osa cls many tokens": ViTConfig(**SMALL, image_size=(16, 16), patch_size=2, pool="cls", residual=True),
    "vit softmax ordinary": ViTConfig(**SMALL, attention="softmax", activation="gelu", **ORDINARY),
    "vit softmax skipless": ViTConfig(**SMALL, attention="softmax"),
    "vit polynomial 1 spectral": ViTConfig(
        **SMALL, attention="polynomial", power=1, conditioning="spectral", **ORDINARY
    ),
    "vit polynomial 3": ViTConfig(**SMALL, attention="polynomial", power=3, **ORDINARY),
    "encoder osa ids": EncoderConfig(**SMALL, vocabulary=11, max_length=64),
    "encoder osa vectors token head": EncoderConfig(
        **SMALL, features=3, max_length=64, head="token", norm=True, form="dense"
    ),
    "encoder softmax": EncoderConfig(**SMALL, vocabulary=11, max_length=64, attention="softmax", **ORDINARY),
    "encoder polynomial 3": EncoderConfig(**SMALL, features=3, max_length=64, attention="polynomial", **ORDINARY),
}
FORMATS = ["onnx", "torchscript", "pt2"]


def inputs(config: ViTConfig | EncoderConfig, batch: int, tokens: int) -> tuple[Tensor, ...]:
    if isinstance(config, ViTConfig):
        return (normal(batch, config.channels, *config.image_size, seed=batch),)
    if config.vocabulary:
        x = torch.randint(0, config.vocabulary, (batch, tokens), generator=torch.Generator().manual_seed(tokens))
    else:
        x = normal(batch, tokens, config.features or 0, seed=tokens)
    return x, torch.arange(tokens)[None] < 1 + torch.arange(batch)[:, None] * tokens // 2 + tokens // 2


def checkpoint(config: ViTConfig | EncoderConfig, folder: Path) -> Path:
    torch.manual_seed(0)
    model = SkiplessViT(config) if isinstance(config, ViTConfig) else SkiplessEncoder(config)
    with torch.no_grad():
        for parameter in model.parameters():  # biases and α away from their start, signs of α included
            parameter.add_(0.05 * torch.randn_like(parameter))
    return save_checkpoint(model, folder)


def agrees(
    artifact: Artifact, eager: nn.Module, config: ViTConfig | EncoderConfig, sizes: list[tuple[int, int]]
) -> None:
    manifest = artifact.manifest
    run = artifact_runner(artifact.model_path)
    for batch, tokens in sizes:
        x = inputs(config, batch, tokens)
        with torch.no_grad():
            expected = eager(*x).numpy()
        result = compare_arrays(run(x)[0], expected, relative_tolerance(manifest.format, "fp32", config.depth))
        assert result, f"batch {batch}, tokens {tokens}: {result.reason}"


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", MODELS)
def test_every_model_in_every_format(tmp_path: Path, name: str, kind: str) -> None:
    config = MODELS[name]
    source = checkpoint(config, tmp_path / "c")
    artifact = export_checkpoint(source, tmp_path / "a", format=kind)
    sizes = [(1, 1), (3, 5), (8, 17), (2, 64)] if isinstance(config, EncoderConfig) else [(1, 0), (3, 0), (8, 0)]
    agrees(artifact, load_checkpoint(source), config, sizes)
    assert artifact.manifest.inputs[0].shape[0] == "batch"
    assert artifact.manifest.outputs[0].shape[0] == "batch"


GRAPHS: dict[str, dict[str, Any]] = {
    "functions": {},
    "inlined": {"functions": "inline"},
    "inlined and unrolled": {"functions": "inline", "squarings": 6},
    "unrolled functions": {"squarings": 6},
    "pade": {"approximant": "pade"},
    "dense": {"form": "dense"},
    "opset 21": {"opset": 21},
    "static": {"static": True},
    "external data": {"external_data": True},
}


@pytest.mark.parametrize("options", GRAPHS.values(), ids=GRAPHS)
def test_every_kind_of_onnx_graph(tmp_path: Path, options: dict[str, Any]) -> None:
    config = MODELS["encoder osa ids"]
    source = checkpoint(config, tmp_path / "c")
    artifact = export_checkpoint(source, tmp_path / "a", **options)
    agrees(artifact, load_checkpoint(source), config, [(1, 64)] if "static" in options else [(1, 1), (3, 5), (2, 30)])
    model = onnx.load(artifact.model_path)
    onnx.checker.check_model(str(artifact.model_path), full_check=True)
    kinds = [node.op_type for node in model.graph.node if node.domain == "ai.osa"]
    inlined = options.get("functions") == "inline"
    folds = not {"functions", "squarings", "approximant", "form"} & set(options)  # 64 tokens of 16 features may
    assert kinds == ([] if inlined else ["OrthogonalSelfAttention" if folds else "OrthogonalAttention"])
    assert bool(model.functions) != inlined
    assert (tmp_path / "a" / "model.onnx.data").exists() == ("external_data" in options)
    if "squarings" in options:
        everything = [*model.graph.node, *(node for f in model.functions for node in f.node)]
        assert not {node.op_type for node in everything} & {"Loop", "If", "Scan"}
    artifact.check_files()


@pytest.mark.parametrize("name", ["vit osa", "encoder osa ids"])
def test_the_evaluator_of_onnx_runs_whole_models(tmp_path: Path, name: str) -> None:
    config = MODELS[name]
    source = checkpoint(config, tmp_path / "c")
    artifact = export_checkpoint(source, tmp_path / "a")
    x = inputs(config, 3, 40)
    feeds = {spec.name: tensor.numpy() for spec, tensor in zip(artifact.manifest.inputs, x, strict=True)}
    with torch.no_grad(), np.errstate(divide="ignore"):  # log(0) is how "no squaring" comes out
        actual = ReferenceEvaluator(str(artifact.model_path)).run(None, feeds)[0]
        assert compare_arrays(
            actual, load_checkpoint(source)(*x).numpy(), relative_tolerance("onnx", "fp32", config.depth)
        )


def test_large_weights_go_outside_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osa_runtime.exporters.onnx_export.LARGEST_SINGLE_FILE", 1000)
    artifact = exporters.export_checkpoint(checkpoint(MODELS["vit osa"], tmp_path / "c"), tmp_path / "a")
    assert set(artifact.manifest.files) == {"model.onnx", "model.onnx.data"}
    artifact.check_files()


@pytest.mark.parametrize("kind", FORMATS)
def test_nothing_is_left_next_to_an_artifact(tmp_path: Path, kind: str) -> None:
    source = checkpoint(MODELS["vit softmax skipless"], tmp_path / "c")
    exporters.export_checkpoint(source, tmp_path / "a", format=kind)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "c"]


def test_half_precision(tmp_path: Path) -> None:
    config = MODELS["vit osa"]
    source = checkpoint(config, tmp_path / "c")
    for kind in FORMATS:
        artifact = export_checkpoint(source, tmp_path / kind, format=kind, dtype="fp16")
        run = artifact_runner(artifact.model_path)
        x = inputs(config, 3, 0)[0]
        with torch.no_grad():
            expected = load_checkpoint(source)(x).numpy()
        actual = run([x.half()])[0]
        assert actual.dtype == np.float16
        assert float(np.abs(actual - expected).max() / np.abs(expected).max()) < 0.02


def test_the_graph_is_readable_and_carries_nothing_of_this_machine(tmp_path: Path) -> None:
    config = ViTConfig(**(SMALL | {"depth": 2}), conditioning="spectral")
    artifact = export_checkpoint(checkpoint(config, tmp_path / "c"), tmp_path / "a")
    model = onnx.load(artifact.model_path)
    names = [node.name for node in model.graph.node]
    assert "stack.blocks.1.attention/OrthogonalAttention" in names
    assert len(set(names)) == len(names)
    assert not [name for name in names if name.startswith(("node_", "val_"))]
    assert not [tensor.name for tensor in model.graph.initializer if tensor.name.startswith("val_")]
    content = artifact.model_path.read_bytes() + (tmp_path / "a" / "manifest.json").read_bytes()
    assert str(Path(__file__).parent.parent.parent).encode() not in content
    assert b"site-packages" not in content
    assert all(f.doc_string for f in model.functions)


@pytest.mark.parametrize("kind", ["torchscript", "pt2"])
def test_torch_formats_carry_nothing_of_this_machine(tmp_path: Path, kind: str) -> None:
    artifact = export_checkpoint(checkpoint(MODELS["vit osa"], tmp_path / "c"), tmp_path / "a", format=kind)
    root = str(Path(__file__).parent.parent.parent).encode()
    with zipfile.ZipFile(artifact.model_path) as archive:
        leaks = [name for name in archive.namelist() for text in [archive.read(name)] if root in text]
    assert leaks == []


def test_what_can_be_folded_is_folded(tmp_path: Path) -> None:
    """Spectral conditioning and the activation's gain cost no node: the graph is that of the plain model."""
    counts = []
    for conditioning in ("none", "spectral"):
        config = ViTConfig(**SMALL, conditioning=conditioning)
        artifact = export_checkpoint(checkpoint(config, tmp_path / f"c{conditioning}"), tmp_path / conditioning)
        counts.append([node.op_type for node in onnx.load(artifact.model_path).graph.node])
    assert counts[0] == counts[1]
    assert "Mul" not in counts[0]


@pytest.mark.parametrize("bad", [-1, 11])
def test_an_unknown_token_never_gives_a_number(tmp_path: Path, bad: int) -> None:
    """In ONNX a negative index counts from the end of the table; the answer must be NaN or an error."""
    artifact = export_checkpoint(checkpoint(MODELS["encoder osa ids"], tmp_path / "c"), tmp_path / "a")
    run = artifact_runner(artifact.model_path)
    tokens, mask = torch.tensor([[1, 2, bad], [1, 2, 3]]), torch.ones(2, 3, dtype=torch.bool)
    if bad >= 0:
        with pytest.raises(Exception, match="out of data bounds"):
            run([tokens, mask])
    else:
        out = run([tokens, mask])[0]
        assert np.isnan(out[0]).all()
        assert np.isfinite(out[1]).all()
    mask[0, 2] = False
    tokens[0, 2] = -1  # padding may hold anything
    assert np.isfinite(run([tokens, mask])[0]).all()
