"""Exports pass, undecidable cases are called so, and flags do what they say."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

from handmade_onnx import model, value
from made_once import export_checkpoint
from osa_runtime.errors import InputError
from osa_runtime.exporters import export
from osa_runtime.exporters.eager import Eager
from osa_runtime.models import EncoderConfig, SkiplessEncoder, SkiplessViT, ViTConfig, save_checkpoint
from osa_runtime.ops import orthogonal_attention, reference
from osa_runtime.ops.spectral_norm import spectral_norm
from osa_runtime.parity.certificate import Certificate
from osa_runtime.parity.feeds import Case
from osa_runtime.verification import Run, VerifySettings, verify

pytestmark = pytest.mark.slow

Made = Callable[..., tuple[Path, Path]]
ORDINARY = ("random", "constant", "mixed", "parallel")  # in which nothing must be NaN
SIZES: dict[str, Any] = {"dim": 16, "depth": 2, "heads": 2, "alpha": 0.3}
CONFIGS = {
    "vit": ViTConfig(classes=10, **SIZES),
    "cls": ViTConfig(classes=4, pool="cls", **SIZES),
    "words": EncoderConfig(classes=3, vocabulary=11, max_length=20, **SIZES),
    "features": EncoderConfig(classes=3, features=5, max_length=20, **SIZES),
    "per-token": EncoderConfig(classes=3, vocabulary=11, max_length=20, head="token", **SIZES),
    "residual": ViTConfig(classes=4, residual=True, norm=True, **SIZES),
    "softmax": ViTConfig(classes=4, attention="softmax", **SIZES),
    "polynomial": ViTConfig(classes=4, attention="polynomial", **SIZES),
    "spectral": ViTConfig(classes=4, conditioning="spectral", **SIZES),
    "still": ViTConfig(classes=4, **SIZES | {"alpha": 0.0}),
    "one-head": ViTConfig(classes=4, **SIZES | {"heads": 1, "depth": 1}),
    "one-token": EncoderConfig(classes=1, vocabulary=1, max_length=1, **SIZES | {"depth": 1}),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """``made("vit", dtype="fp16")``: an artifact and its checkpoint."""
    home = tmp_path_factory.mktemp("configurations")

    def make(name: str, **options: Any) -> tuple[Path, Path]:
        checkpoint, folder = home / name, home / "-".join([name, "artifact", *map(str, options.values())])
        if not checkpoint.exists():
            torch.manual_seed(0)
            config = CONFIGS[name]
            kind = SkiplessViT if isinstance(config, ViTConfig) else SkiplessEncoder
            save_checkpoint(kind(config), checkpoint)  # type: ignore[arg-type]
        if not folder.exists():
            export_checkpoint(checkpoint, folder, **options)
        return folder, checkpoint

    return make


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in CONFIGS),
        ("vit", {"functions": "inline"}),
        ("vit", {"functions": "inline", "squarings": 8}),
        ("vit", {"external_data": True}),
        ("vit", {"approximant": "pade"}),
        ("vit", {"form": "lowrank"}),
        ("vit", {"dtype": "fp16"}),
        ("words", {"static": True}),
        ("words", {"format": "torchscript"}),
        ("features", {"format": "torchscript", "dtype": "fp16"}),
        ("vit", {"format": "pt2"}),
    ],
    ids=lambda x: x if isinstance(x, str) else "-".join(map(str, x.values())) or "plain",
)
def test_what_was_exported_passes(name: str, options: dict[str, Any], made: Made) -> None:
    artifact, checkpoint = made(name, **options)
    certificate = verify(artifact, checkpoint).certificate
    assert certificate.passed, certificate.failures()
    assert sum(case.verdict == "pass" for case in certificate.cases) > len(certificate.cases) / 2
    assert certificate.units
    assert certificate.notes == ()
    layers = [layer for layer in certificate.layers if layer.party == "artifact"]
    depth = CONFIGS[name].depth if CONFIGS[name].attention == "osa" else 0
    names = [f"stack.blocks.{i}.attention" for i in range(depth)]
    assert list(dict.fromkeys(layer.layer for layer in layers)) == names
    assert all(len(layer.heads) == CONFIGS[name].heads for layer in layers)


@pytest.mark.parametrize(
    ("options", "file"),
    [
        ({}, "model.onnx"),
        ({"external_data": True}, "model.onnx"),
        ({"dtype": "fp16"}, "model.onnx"),
        ({"format": "pt2"}, "model.pt2"),
    ],
    ids=["onnx", "external", "fp16", "pt2"],
)
def test_model_files_alone_pass_too(options: dict[str, Any], file: str, made: Made) -> None:
    artifact, checkpoint = made("vit", **options)
    for against in (checkpoint, None):
        certificate = verify(artifact / file, against).certificate
        assert certificate.verdict == ("pass" if against else "consistent"), certificate.failures()
        assert list(certificate.subject["files"]) == [file]
        assert certificate.layers


def test_a_torchscript_file_alone_needs_a_checkpoint_or_inputs(made: Made) -> None:
    artifact, checkpoint = made("words", format="torchscript")
    assert verify(artifact / "model.pt", checkpoint).certificate.passed
    with pytest.raises(InputError, match="alone does not say the types and shapes of its inputs"):
        verify(artifact / "model.pt")
    feeds = {"tokens": np.ones((2, 3), np.int64), "mask": np.ones((2, 3), bool)}
    given = VerifySettings(inputs=[Case("given", {}, feeds)])
    assert verify(artifact / "model.pt", None, given).certificate.verdict == "consistent"


def test_without_a_checkpoint_the_definition_is_the_reference(made: Made) -> None:
    certificate = verify(made("vit")[0]).certificate
    assert (certificate.kind, certificate.verdict, certificate.basis) == ("consistency", "consistent", "no reference")
    assert certificate.reference is None
    assert certificate.units == ()
    assert {layer.party for layer in certificate.layers} == {"artifact"}


@pytest.mark.parametrize("known", [True, False], ids=["checkpoint", "alone"])
@pytest.mark.parametrize("functions", ["keep", "inline"])
def test_inputs_beyond_fixed_squarings_are_undecided(known: bool, functions: str, made: Made) -> None:
    artifact, checkpoint = made("vit", squarings=4, functions=functions)
    certificate = verify(artifact, checkpoint if known else None).certificate
    assert certificate.verdict == ("pass" if known else "consistent"), certificate.failures()
    verdicts = {case.kind: case.verdict for case in certificate.cases}
    assert verdicts["random"] == "pass"
    assert verdicts["large"] == "undecided"
    large = next(case for case in certificate.cases if case.kind == "large")
    assert "NaN, as it must" in large.outputs[0].reason
    assert all(not layer.heads for layer in certificate.layers if layer.case.startswith("large"))


def test_only_inputs_beyond_the_range_are_no_pass(made: Made) -> None:
    artifact, checkpoint = made("vit", squarings=4)
    case = Case("large", {"batch": 2}, {"images": 100 * np.ones((2, 1, 8, 8), np.float32)})
    case.feeds["images"][:, :, ::2] *= -1
    certificate = verify(artifact, checkpoint, VerifySettings(inputs=[case])).certificate
    assert certificate.cases[0].verdict == "undecided"
    assert not certificate.passed


def test_overflow_that_eager_has_too_is_undecided(made: Made) -> None:
    certificate = verify(*made("polynomial")).certificate
    undecided = {case.kind for case in certificate.cases if case.verdict == "undecided"}
    assert "large" in undecided
    assert all(kind.startswith("scaled ") for kind in undecided - {"large"})


def test_tolerances_are_used_and_recorded(made: Made) -> None:
    artifact, checkpoint = made("vit")
    strict = verify(artifact, checkpoint, VerifySettings(rtol=1e-12)).certificate
    assert not strict.passed
    assert strict.settings["rtol"] == 1e-12
    assert {case.verdict for case in strict.cases if case.kind in ORDINARY} == {"fail"}
    loose = verify(artifact, checkpoint, VerifySettings(rtol=1e-12, atol=10.0)).certificate
    assert loose.settings["atol"] == 10.0
    assert {case.verdict for case in loose.cases if case.kind in ORDINARY} == {"pass"}
    assert {output.tolerance for case in loose.cases for output in case.outputs} == {1e-12}


def test_a_tolerance_of_the_user_is_not_stretched(made: Made) -> None:
    """Not even where it is so wide that other rules would call the case lost."""
    artifact, _ = made("vit")
    other = made("cls")[1].parent / "vit-other"
    torch.manual_seed(5)
    save_checkpoint(SkiplessViT(ViTConfig(classes=10, **SIZES)), other)
    certificate = verify(artifact, other, VerifySettings(rtol=0.2)).certificate
    assert {case.verdict for case in certificate.cases if case.kind in ORDINARY} == {"fail"}


def test_saved_inputs_and_outputs_reproduce(made: Made) -> None:
    artifact, checkpoint = made("words")
    first = verify(artifact, checkpoint)
    again = verify(artifact, checkpoint, VerifySettings(inputs=first.cases))
    assert again.certificate.cases == first.certificate.cases
    alone = verify(artifact, None, VerifySettings(inputs=first.cases, outputs=first.outputs)).certificate
    assert alone.passed
    assert all(output.needed == 0.0 for case in alone.cases for output in case.outputs)


def test_other_outputs_fail_and_missing_ones_are_an_error(made: Made) -> None:
    artifact, _ = made("words")
    run = verify(artifact)
    wrong = {case: {name: x + 1 for name, x in outputs.items()} for case, outputs in run.outputs.items()}
    assert not verify(artifact, None, VerifySettings(inputs=run.cases, outputs=wrong)).certificate.passed
    renamed = {case: {"scores": x["logits"]} for case, x in run.outputs.items()}
    failures = verify(artifact, None, VerifySettings(inputs=run.cases, outputs=renamed)).certificate.failures()
    assert any("this output is missing; there is logits" in failure for failure in failures)
    with pytest.raises(InputError, match="lack the case"):
        verify(artifact, None, VerifySettings(inputs=run.cases, outputs={}))


def given(made: Made, kind: str, **changes: Any) -> Run:
    feeds = {"tokens": np.ones((2, 3), np.int64), "mask": np.ones((2, 3), bool)} | changes
    options = VerifySettings(inputs=[Case(kind, {"batch": 2, "tokens": 3}, feeds)])
    return verify(*made("words"), options)


@pytest.mark.parametrize("kind", ["given", "constant", "of my own"])
def test_given_inputs_of_any_kind_are_enough(kind: str, made: Made) -> None:
    certificate = given(made, kind).certificate
    assert certificate.passed, certificate.failures()
    assert certificate.layers
    assert certificate.units


def test_given_inputs_that_eager_cannot_run_are_an_error(made: Made) -> None:
    with pytest.raises(InputError, match="Token ids must lie in 0 … 10, got 99"):
        given(made, "given", tokens=np.full((2, 3), 99))


def test_zeros_pass(made: Made) -> None:
    case = Case("given", {"batch": 1}, {"images": np.zeros((1, 1, 8, 8), np.float32)})
    certificate = verify(*made("vit"), VerifySettings(inputs=[case])).certificate
    assert certificate.passed, certificate.failures()


def test_nan_in_the_inputs_is_no_pass(made: Made) -> None:
    case = Case("given", {"batch": 1}, {"images": np.full((1, 1, 8, 8), np.nan, np.float32)})
    assert verify(made("vit")[0], None, VerifySettings(inputs=[case])).certificate.failed
    certificate = verify(*made("vit"), VerifySettings(inputs=[case])).certificate
    assert certificate.cases[0].verdict == "undecided"
    assert "NaN, as it must be" in certificate.cases[0].outputs[0].reason
    assert not certificate.passed


@pytest.mark.parametrize("tokens", [1, 5, 33])
def test_the_oracle_is_the_reference(tokens: int) -> None:
    class Attention(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return orthogonal_attention(q, k, v, 0.7)

    generator = np.random.default_rng(0)
    feeds = {name: generator.standard_normal((2, 3, tokens, 4)) for name in "qkv"}
    oracle = Eager(Attention(), ["q", "k", "v"], ["out"], "fp64")
    q, k, v = (torch.from_numpy(x) for x in feeds.values())
    truth = reference.orthogonal_attention(q, k, v, 0.7).numpy()
    np.testing.assert_allclose(oracle.run(feeds)["out"], truth, rtol=0, atol=1e-12)  # beyond 2d tokens by Theorem 2.1
    exact = np.linalg.norm(0.7 * (q @ k.mT - k @ q.mT).numpy(), 2, axis=(-2, -1))
    assert oracle.norms == pytest.approx(exact.max(1), rel=0.15, abs=1e-12)
    assert np.all(oracle.norms <= exact.max(1) * (1 + 1e-9) + 1e-12)
    assert np.all(spectral_norm(q, k, torch.full((2, 3), 0.7)).numpy() <= exact * (1 + 1e-9) + 1e-12)


def rows(*nodes: onnx.NodeProto, outputs: tuple[str, ...] = ("y",)) -> onnx.ModelProto:
    values = [value(name) for name in outputs]
    axes = [numpy_helper.from_array(np.array([i]), name) for i, name in enumerate(("batch_axis", "last_axis"))]
    return model(helper.make_graph(list(nodes), "g", [value("x")], values, axes))


def alone(tmp_path: Path, made_by_hand: onnx.ModelProto, **options: Any) -> Certificate:
    onnx.save(made_by_hand, tmp_path / "m.onnx")
    return verify(tmp_path / "m.onnx", None, VerifySettings(**options)).certificate


def test_rows_that_disturb_each_other_fail(tmp_path: Path) -> None:
    mean = helper.make_node("ReduceMean", ["x", "batch_axis"], ["m"])
    certificate = alone(tmp_path, rows(mean, helper.make_node("Sub", ["x", "m"], ["y"])))
    assert certificate.failed
    assert [check.name for check in certificate.checks if not check.passed] == ["rows (random)", "rows (mixed)"]
    assert "alone has another answer" in certificate.failures()[0]


def test_rows_that_do_not_pass(tmp_path: Path) -> None:
    mean = helper.make_node("ReduceMean", ["x", "last_axis"], ["m"])
    certificate = alone(tmp_path, rows(mean, helper.make_node("Sub", ["x", "m"], ["y"])))
    assert certificate.verdict == "consistent"
    assert sum(check.name.startswith("rows") for check in certificate.checks) == 2


def test_nan_without_any_reference_fails(tmp_path: Path) -> None:
    certificate = alone(tmp_path, rows(helper.make_node("Log", ["x"], ["y"])))
    assert certificate.failed
    assert "values are NaN or Inf" in certificate.failures()[0]


class Two(nn.Module):
    """Two outputs, one of them whole numbers; two inputs, one of them without rows; a switch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, shift: Tensor, flip: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.first(torch.where(flip, -x, x)) + shift
        return hidden, self.second(hidden).argmax(-1)


class Nested(nn.Module):
    """A call of rank 3 or 2 inside a layer, for sequences with or without a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Flat()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(2.0 * x)


class Flat(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, 12)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).chunk(3, -1)
        return orthogonal_attention(q, k, v, 0.3)


Dim = torch.export.Dim


def own_modules() -> dict[str, tuple[nn.Module, tuple[Tensor, ...], dict[str, Any]]]:
    """Seeded, so that a failure can be repeated."""
    torch.manual_seed(0)
    return {
        "two outputs": (
            Two(),
            (torch.randn(3, 4), torch.randn(1, 4), torch.tensor(False)),
            {"dynamic_shapes": {"x": {0: Dim("batch")}}, "input_names": ["x", "shift", "flip"]},
        ),
        "rank 3": (Nested(), (torch.randn(3, 5, 4),), {"dynamic_shapes": {"x": {0: Dim("batch"), 1: Dim("tokens")}}}),
        "fixed batch": (Nested(), (torch.randn(3, 5, 4),), {"dynamic_shapes": {"x": {1: Dim("tokens")}}}),
        "no batch": (Nested(), (torch.randn(5, 4),), {"dynamic_shapes": {"x": {0: Dim("tokens")}}}),
        "ranges": (
            Nested(),
            (torch.randn(3, 5, 4),),
            {"dynamic_shapes": {"x": {0: Dim("batch", min=2, max=4), 1: Dim("tokens", min=3, max=9)}}},
        ),
        "awkward names": (
            Nested(),
            (torch.randn(3, 5, 4),),
            {
                "dynamic_shapes": {"in/x [1]": {0: Dim("batch"), 1: Dim("tokens")}},
                "input_names": ["in/x [1]"],
                "output_names": ["out/ü"],
            },
        ),
    }


with torch.random.fork_rng():
    OWN = own_modules()


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("kind", ["onnx", "torchscript"])
def test_modules_of_ones_own_are_verified_alone(name: str, kind: str, tmp_path: Path) -> None:
    module, args, options = OWN[name]
    options = {"input_names": ["x"]} | options
    export(module.eval(), args, tmp_path / "own", format=kind, **options)
    certificate = verify(tmp_path / "own").certificate
    assert certificate.verdict == "consistent", certificate.failures()
    if isinstance(module, Nested) and kind == "torchscript":  # it shows the calls of our own layers only
        assert certificate.notes == (
            "no call of orthogonal attention can be seen inside the artifact; none was checked",
        )
    elif isinstance(module, Nested):
        assert {layer.layer for layer in certificate.layers} == {"inner"}
        # the tolerance grows with the norm, which is up to some hundreds here
        assert all(len(layer.heads) == 1 and layer.heads[0].defect < layer.tolerance for layer in certificate.layers)


def test_a_certificate_of_a_run_survives_its_file(made: Made, tmp_path: Path) -> None:
    from osa_runtime.parity.certificate import read_certificate

    certificate = verify(*made("words"), VerifySettings(lengths=[3], batches=[2])).certificate
    certificate.write(tmp_path / "c.json")
    assert read_certificate(tmp_path / "c.json") == dataclasses.replace(certificate)
