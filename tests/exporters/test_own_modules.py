"""Modules of a user's own: layers inside them, direct calls, shared and hooked parts, settings that reach them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from exponents import normal
from osa_runtime import load
from osa_runtime.errors import ExponentRangeError, ExportError, InputError
from osa_runtime.exporters import export
from osa_runtime.exporters.acceptance import artifact_runner
from osa_runtime.exporters.eager import rounding_depth
from osa_runtime.nn import IsometricMLP, OrthogonalSelfAttention
from osa_runtime.ops import orthogonal_attention
from osa_runtime.parity import compare_arrays
from osa_runtime.verification import verify
from osa_runtime.verification.inside.onnx_parts import OnnxParts

pytestmark = pytest.mark.slow

FORMATS = ["onnx", "torchscript", "pt2"]


class Own(nn.Module):
    """A module of a user's own: one OSA layer, and direct calls of other ranks, with and without a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = OrthogonalSelfAttention(8, 2, alpha=0.3, form="dense")

    def forward(self, x: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        y = self.layer(x, real)
        z = orthogonal_attention(y, x, x, 0.1, form="dense")
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
    run = artifact_runner(artifact.model_path)
    x, real = normal(3, 29, 8), torch.arange(29)[None] < torch.tensor([29, 1, 13])[:, None]
    with torch.no_grad():
        wanted = [y.numpy() for y in module(x, real)]
    for actual, expected in zip(run([x, real]), wanted, strict=True):
        assert compare_arrays(actual, expected, 1e-5)


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
    run, x = artifact_runner(artifact.model_path), normal(3, 30, 8)
    with torch.no_grad():
        assert compare_arrays(run([x])[0], module(x).numpy(), 1e-5)
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
    assert artifact.manifest.osa.squarings == 3
    assert artifact.manifest.osa.approximant == "pade"


class Products(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ParameterList([nn.init.orthogonal_(torch.empty(64, 64)) for _ in range(30)])

    def forward(self, x: Tensor) -> Tensor:
        for step in self.steps:
            x = x @ step
        return x


def test_the_tolerance_counts_matrices_of_any_kind() -> None:
    assert rounding_depth(Products()) == 30
    assert rounding_depth(nn.Identity()) == 4


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
    with pytest.raises(InputError, match=rf"{flag}={value!r}, but a direct call .* set it in the call"):
        export(Calling({}, choice), (x,), tmp_path / "a", format="pt2", **choice)
    assert list(tmp_path.iterdir()) == []
    artifact = export(Calling(choice), (x,), tmp_path / "a", format="pt2", **choice)
    assert getattr(artifact.manifest.osa, flag) == value


def test_the_manifest_tells_of_all_calls(tmp_path: Path) -> None:
    x = normal(2, 6, 8)
    osa = export(Calling({}, {"squarings": 3}), (x,), tmp_path / "a", format="pt2").manifest.osa
    assert (osa.squarings, osa.form) == ("mixed", "auto")
    assert osa.largest_norm < 10
    assert export(nn.Identity(), (x,), tmp_path / "b", format="pt2", input_names=["x"]).manifest.osa is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (({"approximant": "pade"}, {}), "different approximant: pade, taylor.* approximant="),
        (({"squarings": 3}, {}), "different squarings: 3, auto.* squarings="),
        (({"squarings": 3}, {"squarings": 4}), "different squarings: 3, 4.* squarings="),
    ],
)
def test_one_definition_serves_a_whole_onnx_model(tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        export(Calling(*options), (normal(2, 6, 8),), tmp_path / "a")


@pytest.mark.parametrize(("squarings", "form"), [("auto", "auto"), (3, "lowrank")])
def test_calls_of_different_forms_share_a_definition(tmp_path: Path, squarings: str | int, form: str) -> None:
    calls = Calling({"form": "dense", "squarings": squarings}, {"form": "lowrank", "squarings": squarings})
    artifact = export(calls, (normal(2, 6, 8),), tmp_path / "a", dynamic_shapes={"x": {1: "tokens"}})
    assert artifact.manifest.osa.form == form


def test_too_few_squarings_are_named(tmp_path: Path) -> None:
    x = 10 * normal(2, 6, 8)
    with pytest.raises(ExportError, match=r"fixed number of squarings \(1\): use more, or squarings='auto'"):
        export(Calling({}), (x,), tmp_path / "a", squarings=1)
    with pytest.raises(ExponentRangeError, match="squarings=1 does not suffice"):
        export(OrthogonalSelfAttention(8, 2, alpha=9.0), (x,), tmp_path / "a", squarings=1)
    assert list(tmp_path.iterdir()) == []


class Flags(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.where((x < 0) | (x > 1), 0.0, x)


@pytest.mark.parametrize("kind", FORMATS)
def test_an_example_may_be_a_view(tmp_path: Path, kind: str) -> None:
    """Its strides are no part of the interface: the length of what it was cut from is as good as any."""
    axes = {"x": {1: torch.export.Dim("tokens", min=1, max=8)}}
    export(Flags(), (torch.randn(2, 8)[:, :4],), tmp_path / "out", dynamic_shapes=axes, format=kind)
    x = torch.randn(2, 8).numpy()
    np.testing.assert_array_equal(load(tmp_path / "out").run({"x": x})["output"], np.where((x < 0) | (x > 1), 0, x))


class Scaled(nn.Module):
    """A call with a plain number as its scale."""

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return orthogonal_attention(q, k, q, 1e-8)


def test_half_precision_does_not_round_the_scale(tmp_path: Path) -> None:
    """1e-8 is zero in float16, where queries of 300 still rotate the values."""
    q, k = (normal(1, 2, 40, 8, seed=seed, dtype=torch.float16) for seed in (1, 2))
    artifact = export(Scaled(), (q, k), tmp_path / "a")
    q, k = 300 * q, 300 * k
    actual = torch.from_numpy(artifact_runner(artifact.model_path)([q, k])[0])
    torch.testing.assert_close(actual, Scaled()(q, k), rtol=2e-3, atol=0.5)
    assert float((actual - q).abs().max()) > 5


class Behind(nn.Module):
    """A layer with a linear one behind it; ``kind`` is what else happens to the layer's result."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.layer = kind, OrthogonalSelfAttention(8, 2, alpha=0.1)
        self.next = nn.Linear(8, 20, bias=kind != "no bias")

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        mixed = self.layer(x)
        if self.kind == "skip":
            return (self.next(x + mixed),)
        if self.kind == "activation":
            return (self.next(mixed.relu()),)
        return (self.next(mixed), mixed) if self.kind == "read twice" else (self.next(mixed),)


@pytest.mark.parametrize("kind", ["plain", "skip", "activation", "read twice", "no bias"])
def test_a_linear_layer_is_joined_only_if_it_alone_reads_the_attention(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(0)
    module = Behind(kind).eval()
    axes = {"x": {0: torch.export.Dim("batch", min=1), 1: torch.export.Dim("tokens", min=1, max=400)}}
    artifact = export(module, (torch.randn(2, 9, 8),), tmp_path / "a", dynamic_shapes=axes)
    kinds = {node.op_type for node in onnx.load(artifact.model_path).graph.node if node.domain == "ai.osa"}
    assert kinds == {"OrthogonalSelfAttentionLinear" if kind == "plain" else "OrthogonalSelfAttention"}
    with load(artifact.folder, count_squarings=True) as session:
        for tokens in (1, 20, 400):
            x = torch.randn(2, tokens, 8)
            found = next(iter(session.run({"x": x.numpy()}).values()))
            expected = module(x)[0].detach().numpy()
            np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(expected).max())
        assert session.squarings is not None
        assert list(session.squarings.latest) == ["layer"]


def test_joined_layers_are_verified_apart(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = Behind("plain").eval()
    axes = {"x": {0: torch.export.Dim("batch", min=1), 1: torch.export.Dim("tokens", min=1, max=400)}}
    artifact = export(module, (torch.randn(2, 9, 8),), tmp_path / "a", dynamic_shapes=axes)
    assert verify(artifact.folder, module=module).certificate.passed
    parts = OnnxParts(artifact.model_path, artifact.manifest.attentions, 1)
    assert (parts.units, parts.attentions) == (("layer", "next"), ("layer",))
    x = torch.randn(2, 300, 8)
    np.testing.assert_allclose(parts.call("layer", [x.numpy()]), module.layer(x).detach().numpy(), rtol=0, atol=1e-5)
    model = onnx.load(artifact.model_path)
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "next/MatMul.weight")
    weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) * 1.001, weight.name))
    onnx.save(model, tmp_path / "wrong.onnx")
    failed = verify(tmp_path / "wrong.onnx", module=module).certificate
    assert not failed.passed
    assert "next" in {part.unit for part in failed.units if not part.passed}
