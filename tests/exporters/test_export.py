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
from torch.nn.utils import parametrize

from exponents import normal
from osa_runtime.artifact import Artifact
from osa_runtime.errors import ExponentRangeError, ExportError, InputError, StorageError
from osa_runtime.exporters import export, export_checkpoint
from osa_runtime.exporters.pipeline import _depth
from osa_runtime.exporters.runners import artifact_runner
from osa_runtime.models import EncoderConfig, SkiplessEncoder, SkiplessViT, ViTConfig, load_checkpoint, save_checkpoint
from osa_runtime.nn import IsometricMLP, OrthogonalSelfAttention
from osa_runtime.ops import orthogonal_attention
from osa_runtime.parity import compare, relative_tolerance

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
    "encoder osa vectors token head": EncoderConfig(**SMALL, features=3, max_length=64, head="token", norm=True),
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
    run = artifact_runner(artifact.model_path, manifest.format, [spec.name for spec in manifest.inputs])
    for batch, tokens in sizes:
        x = inputs(config, batch, tokens)
        with torch.no_grad():
            expected = eager(*x).numpy()
        result = compare(run(x)[0], expected, relative_tolerance(manifest.format, "fp32", config.depth))
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
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "c"]


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
    assert kinds == ([] if inlined else ["OrthogonalAttention"])
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
        assert compare(actual, load_checkpoint(source)(*x).numpy(), relative_tolerance("onnx", "fp32", config.depth))


def test_large_weights_go_outside_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osa_runtime.exporters.onnx_export.LARGEST_SINGLE_FILE", 1000)
    artifact = export_checkpoint(checkpoint(MODELS["vit osa"], tmp_path / "c"), tmp_path / "a")
    assert set(artifact.manifest.files) == {"model.onnx", "model.onnx.data"}
    artifact.check_files()


def test_half_precision(tmp_path: Path) -> None:
    config = MODELS["vit osa"]
    source = checkpoint(config, tmp_path / "c")
    for kind in FORMATS:
        artifact = export_checkpoint(source, tmp_path / kind, format=kind, dtype="fp16")
        run = artifact_runner(artifact.model_path, kind, ["images"])
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


class Own(nn.Module):
    """A module of a user's own: one OSA layer, and direct calls of other ranks, with and without a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = OrthogonalSelfAttention(8, 2, alpha=0.3)

    def forward(self, x: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        y = self.layer(x, real)
        z = orthogonal_attention(y, x, x, 0.1)
        return z, z.sum(1)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_module_of_ones_own(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(0)
    module, axes = Own(), {"x": {0: "batch", 1: "length"}, "real": {0: "batch", 1: "length"}}
    example = (normal(2, 6, 8), torch.ones(2, 6, dtype=torch.bool))
    names = ["mixed", "total"]
    artifact = export(module, example, tmp_path / "a", format=kind, dynamic_shapes=axes, output_names=names)
    assert [str(s) for s in artifact.manifest.outputs] == [
        "mixed: float32[batch, length, 8]",
        "total: float32[batch, 8]",
    ]
    run = artifact_runner(artifact.model_path, kind, ["x", "real"])
    x, real = normal(3, 29, 8), torch.arange(29)[None] < torch.tensor([29, 1, 13])[:, None]
    with torch.no_grad():
        wanted = [y.numpy() for y in module(x, real)]
    for actual, expected in zip(run([x, real]), wanted, strict=True):
        assert compare(actual, expected, 1e-5)


class Tied(nn.Module):
    """Two layers that share their parameters, one of them used twice, another subclassed with its own scale."""

    class Louder(OrthogonalSelfAttention):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            q, k, v = self.project(x)
            return orthogonal_attention(q, k, v, 2 * self.alpha).transpose(1, 2).flatten(2)

    def __init__(self) -> None:
        super().__init__()
        self.one = OrthogonalSelfAttention(8, 2, alpha=-0.4, conditioning="spectral")
        self.other = OrthogonalSelfAttention(8, 2, alpha=0.2, conditioning="spectral")
        self.other.project.weight, self.other.alpha = self.one.project.weight, self.one.alpha
        self.louder = Tied.Louder(8, 2, alpha=0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.louder(self.one(self.other(self.one(x))))


def test_shared_and_subclassed_layers_are_not_folded_wrongly(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Tied()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    artifact = export(module, (normal(2, 6, 8),), tmp_path / "a", dynamic_shapes={"x": {0: "batch", 1: "tokens"}})
    run, x = artifact_runner(artifact.model_path, "onnx", ["x"]), normal(3, 30, 8)
    with torch.no_grad():
        assert compare(run([x])[0], module(x).numpy(), 1e-5)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


class Shared(nn.Module):
    """Parts that belong to two layers at once, a hook, and one α for both heads: nothing of it may be folded."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = OrthogonalSelfAttention(8, 2, alpha=0.4), OrthogonalSelfAttention(8, 2, alpha=-0.2)
        self.other.project = self.one.project
        self.mlp, self.mlp2 = IsometricMLP(8, 16, slope=0.1), IsometricMLP(8, 16, slope=0.7)
        self.mlp2.contract = self.mlp.contract
        self.single = OrthogonalSelfAttention(8, 2)
        self.single.alpha = nn.Parameter(torch.tensor([0.3]))

    def forward(self, x: Tensor) -> Tensor:
        return self.single(self.mlp2(self.mlp(self.other(self.one(x)))))


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.mlp = OrthogonalSelfAttention(8, 2, alpha=0.4), IsometricMLP(8, 16, slope=0.1)
        self.layer.project.register_forward_hook(lambda _m, _i, qkv: (qkv[0] + 1.0, qkv[1], qkv[2]))
        self.mlp.contract.register_forward_pre_hook(lambda _m, args: (args[0] + 1.0,))

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.layer(x))


@pytest.mark.parametrize("module", [Shared, Hooked])
def test_what_cannot_be_folded_is_left_as_it_is(tmp_path: Path, module: type[nn.Module]) -> None:
    torch.manual_seed(0)
    export(module(), (normal(2, 6, 8),), tmp_path / "a", dynamic_shapes={"x": {0: "batch", 1: "tokens"}})


def test_settings_reach_parametrised_layers(tmp_path: Path) -> None:
    layer = OrthogonalSelfAttention(8, 2)
    parametrize.register_parametrization(layer, "alpha", nn.Tanh())
    artifact = export(layer, (normal(2, 6, 8),), tmp_path / "a", format="pt2", squarings=3, approximant="pade")
    assert artifact.manifest.osa["squarings"] == 3
    assert artifact.manifest.osa["approximant"] == "pade"


class Products(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ParameterList([nn.init.orthogonal_(torch.empty(64, 64)) for _ in range(30)])

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = x @ step
        return x


def test_the_tolerance_counts_matrices_of_any_kind() -> None:
    assert _depth(Products()) == 30
    assert _depth(nn.Identity()) == 4


def test_thirty_raw_products_agree(tmp_path: Path) -> None:
    torch.manual_seed(0)
    export(Products(), (normal(2, 64),), tmp_path / "a", dynamic_shapes={"x": {0: "batch"}})


class Calling(nn.Module):
    """Calls of the user's own, each with its own options."""

    def __init__(self, *options: dict[str, Any]) -> None:
        super().__init__()
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        for options in self.options:
            x = orthogonal_attention(x, x.roll(1, -1), x, 0.03, **options)
        return x


@pytest.mark.parametrize(("flag", "value"), [("form", "dense"), ("approximant", "pade"), ("squarings", 3)])
def test_a_flag_that_cannot_be_obeyed_is_refused(tmp_path: Path, flag: str, value: Any) -> None:
    x, choice = normal(2, 6, 8), {flag: value}
    with pytest.raises(InputError, match=rf"--{flag} is {value}, but a direct call .* set it in the call"):
        export(Calling({}, choice), (x,), tmp_path / "a", format="pt2", **choice)
    assert list(tmp_path.iterdir()) == []
    artifact = export(Calling(choice), (x,), tmp_path / "a", format="pt2", **choice)
    assert artifact.manifest.osa[flag] == value


def test_the_manifest_tells_of_all_calls(tmp_path: Path) -> None:
    x = normal(2, 6, 8)
    osa = export(Calling({}, {"squarings": 3}), (x,), tmp_path / "a", format="pt2").manifest.osa
    assert (osa["squarings"], osa["form"]) == ("mixed", "auto")
    assert osa["largest_norm"] < 10
    assert export(nn.Identity(), (x,), tmp_path / "b", format="pt2", input_names=["x"]).manifest.osa == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (({"approximant": "pade"}, {}), "different approximant: pade, taylor.* --approximant"),
        (({"squarings": 3}, {}), "different squarings: 3, auto.* --squarings"),
        (({"squarings": 3}, {"squarings": 4}), "different squarings: 3, 4.* --squarings"),
    ],
)
def test_one_definition_serves_a_whole_onnx_model(tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        export(Calling(*options), (normal(2, 6, 8),), tmp_path / "a")


@pytest.mark.parametrize(("squarings", "form"), [("auto", "auto"), (3, "lowrank")])
def test_calls_of_different_forms_share_a_definition(tmp_path: Path, squarings: str | int, form: str) -> None:
    calls = Calling({"form": "dense", "squarings": squarings}, {"form": "lowrank", "squarings": squarings})
    artifact = export(calls, (normal(2, 6, 8),), tmp_path / "a", dynamic_shapes={"x": {1: "tokens"}})
    assert artifact.manifest.osa["form"] == form


@pytest.mark.parametrize("bad", [-1, 11])
def test_an_unknown_token_never_gives_a_number(tmp_path: Path, bad: int) -> None:
    """In ONNX a negative index counts from the end of the table; the answer must be NaN or an error."""
    artifact = export_checkpoint(checkpoint(MODELS["encoder osa ids"], tmp_path / "c"), tmp_path / "a")
    run = artifact_runner(artifact.model_path, "onnx", ["tokens", "mask"])
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


class Static(nn.Module):
    """Pretends to take any batch, but bakes the example's into the graph."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(int(x.shape[0]), -1) if torch.compiler.is_compiling() else x.flatten(1)


class Wrong(nn.Module):
    """Computes something else when it is captured."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 1.01 if torch.compiler.is_compiling() else x * 1.0


class Unsupported(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.matrix_exp(x)


class Deciding(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x - 1


class Sorting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack(sorted([x, -x], key=lambda y: float(y.sum())))


class Dictionary(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"y": x}


def test_an_axis_that_became_static_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="batch"):
        export(Static(), (normal(2, 3, 4),), tmp_path / "a", dynamic_shapes={"x": {0: "batch"}})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["onnx", "pt2"])
def test_a_wrong_answer_is_not_written(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ExportError, match=r"'output' differs from eager on the example inputs: relative error 0\.0"):
        export(Wrong(), (normal(2, 3),), tmp_path / "a", format=kind)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("culprit", "kind", "reason"),
    [
        (Unsupported(), "onnx", "linalg_matrix_exp"),
        (Deciding(), "onnx", "data-dependent"),
        (Deciding(), "pt2", "data-dep"),
        (Sorting(), "torchscript", r"Lambda aren't supported \(UnsupportedNodeError\)$"),
    ],
    ids=["no operator", "branch on data, onnx", "branch on data, pt2", "no TorchScript"],
)
def test_what_cannot_be_exported_names_the_layer(tmp_path: Path, culprit: nn.Module, kind: str, reason: str) -> None:
    module = nn.Sequential(nn.Identity(), nn.Sequential(nn.Identity(), culprit))
    with pytest.raises(ExportError, match=rf"in the layer '1\.1': .*{reason}"):
        export(module, (normal(2, 3, 3),), tmp_path / "a", format=kind, input_names=["x"])
    assert list(tmp_path.iterdir()) == []


X = torch.zeros(2, 3)
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "opset": ({"opset": 11}, "--opset is 11, expected 18 to 23"),
    "format": ({"format": "tflite"}, "--format is 'tflite', expected one of onnx, torchscript, pt2"),
    "bf16": ({"dtype": "bf16"}, "no bf16 kernels"),
    "squarings": ({"squarings": -1}, "--squarings is -1"),
    "axis of size one": ({"args": (X[:1],), "dynamic_shapes": {"x": {0: "batch"}}}, "torch would make it static"),
    "unknown input": ({"dynamic_shapes": {"y": {0: "batch"}}}, r"names the inputs \['y'\]"),
    "axis out of range": ({"dynamic_shapes": {"x": {5: "batch"}}}, "has 2 axes, but axis 5"),
    "too many names": ({"input_names": ["a", "b"]}, "Expected 1 distinct input names"),
    "output names": ({"output_names": ["a", "b"]}, "Expected 1 distinct output names"),
    "size for a name": ({"dynamic_shapes": {"x": {0: 3}}}, "dynamic_shapes of x has 0: 3; expected the number of an"),
    "name with a space": ({"dynamic_shapes": {"x": {0: "my batch"}}}, "a name without spaces"),
    "name for axes": ({"dynamic_shapes": {"x": "batch"}}, "dynamic_shapes of x is 'batch', expected {input: {axis"),
    "list of axes": ({"dynamic_shapes": ["batch"]}, "dynamic_shapes is .*, expected {input: {axis: name}}"),
    "opset without onnx": ({"format": "pt2", "opset": 21}, "--opset 21 is only for ONNX, but --format is pt2"),
    "inline without onnx": ({"format": "pt2", "functions": "inline"}, "--functions inline is only for ONNX"),
    "data without onnx": ({"format": "torchscript", "external_data": True}, "--external-data is only for ONNX"),
    "float64 inputs": ({"args": (X.double(),)}, "--dtype fp32: the example input 0 has float64 values"),
    "no tensors": ({"args": (3,)}, "tuple of tensors"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_arguments(tmp_path: Path, case: str) -> None:
    changes, message = REFUSED[case]
    options = {"args": (X,)} | changes

    class Double(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

    with pytest.raises(InputError, match=message):
        export(Double(), options.pop("args"), tmp_path / "a", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_float64_module_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--dtype fp32: the module has float64 parameters \(weight\)"):
        export(nn.Linear(3, 3).double(), (X,), tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


class Deviation(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / (x - x.mean(1, keepdim=True)).abs().sum(1, keepdim=True)


@pytest.mark.parametrize(("module", "problem"), [(nn.Conv1d(4, 4, 3), "fails"), (Deviation(), "gives NaN or Inf")])
def test_a_size_that_the_module_cannot_answer_is_named(tmp_path: Path, module: nn.Module, problem: str) -> None:
    x, axis = normal(2, 4, 6), 2 if isinstance(module, nn.Conv1d) else 1
    message = rf"itself {problem}.* 'tokens' at size 1\. .* torch\.export\.Dim\(\"tokens\", min=\d\)"
    with pytest.raises(InputError, match=message):
        export(module, (x,), tmp_path / "a", input_names=["x"], dynamic_shapes={"x": {axis: "tokens"}})
    assert list(tmp_path.iterdir()) == []
    ranged = {"x": {axis: torch.export.Dim("tokens", min=3)}}
    export(module, (x,), tmp_path / "a", input_names=["x"], dynamic_shapes=ranged)


def test_too_few_squarings_are_named(tmp_path: Path) -> None:
    x = 10 * normal(2, 6, 8)
    with pytest.raises(ExportError, match=r"fixed number of squarings \(1\): use more with --squarings"):
        export(Calling({}), (x,), tmp_path / "a", squarings=1)
    with pytest.raises(ExponentRangeError, match="--squarings 1 does not suffice"):
        export(OrthogonalSelfAttention(8, 2, alpha=9.0), (x,), tmp_path / "a", squarings=1)
    assert list(tmp_path.iterdir()) == []


def test_only_tensors_come_out(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="forward returns dict"):
        export(Dictionary(), (X,), tmp_path / "a")


def test_an_existing_folder_is_kept_unless_told(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "precious").touch()
    with pytest.raises(StorageError, match="exists already"):
        export(nn.Identity(), (X,), tmp_path / "a", input_names=["x"])
    assert (tmp_path / "a" / "precious").exists()
