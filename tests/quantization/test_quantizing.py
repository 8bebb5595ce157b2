"""Quantised artifacts: what is rounded and how well, what is left alone, and that every variant of a graph survives."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from made_once import export_checkpoint
from osa_runtime.artifact import Artifact
from osa_runtime.errors import ExportError, InputError
from osa_runtime.exporters.functions import DOMAIN
from osa_runtime.manifest import AttentionCall
from osa_runtime.onnx_files import input_specs, output_specs
from osa_runtime.parity.tolerances import relative_tolerance
from osa_runtime.quantization import checks, quantize, quantizing
from osa_runtime.quantization.checks import check_file, check_rewriting
from osa_runtime.quantization.weights import Selection, quantize_products, select
from osa_runtime.runtime.session import load
from osa_runtime.verification import VerifySettings, compare, verify
from osa_runtime.verification.inside.onnx_parts import OnnxParts
from small_models import feeds

Exported = Callable[[str, str], Path]
MODES = ("none", "dynamic", "static")
VARIANTS = {
    "inlined": {"functions": "inline", "form": "lowrank"},
    "unrolled": {"functions": "inline", "squarings": 6, "form": "lowrank"},
    "outside": {"external_data": True},
    "fixed": {"static": True},
    "newer": {"opset": 23},
}


def calibration(folder: Path, model: str, examples: int = 64) -> Path:
    path = folder / f"{model}-examples.npz"
    np.savez(path, **feeds(model, examples, 9))
    return path


def quantized(source: Path, out: Path, mode: str, model: str, **options: Any) -> quantizing.Quantized:
    examples = calibration(out.parent, model) if mode == "static" else None
    return quantize(source, out, activations=mode, calibration=examples, **options)


def initializers(path: Path) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


@pytest.fixture(scope="module", params=[(model, mode) for model in ("vit", "encoder") for mode in MODES], ids="-".join)
def small(
    request: pytest.FixtureRequest, exported: Exported, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, str, quantizing.Quantized]:
    model, mode = request.param
    out = tmp_path_factory.mktemp("quantized") / "small"
    return model, mode, quantized(exported(model, "onnx"), out, mode, model)


def test_the_answers_move_by_rounding_only(small: tuple[str, str, quantizing.Quantized]) -> None:
    model, mode, result = small
    manifest, source = result.artifact.manifest, result.source.folder
    inputs = feeds(model, 40, 9)
    with load(result.artifact.folder) as mine, load(source) as theirs:
        actual, expected = mine.run(inputs)["logits"], theirs.run(inputs)["logits"]
    error = np.abs(actual - expected).max() / np.abs(expected).max()
    assert 0 < error < relative_tolerance("onnx", manifest.dtype, manifest.depth or 0)
    assert manifest.dtype == ("w8" if mode == "none" else "w8a8")
    assert 0 < result.deviations["logits"].max_rel < 0.1


def test_functions_interface_and_parts_stay(small: tuple[str, str, quantizing.Quantized]) -> None:
    source, result = small[2].source, small[2].artifact
    before, after = onnx.load(source.model_path), onnx.load(result.model_path)
    assert list(before.functions) == list(after.functions)
    assert sum(node.domain == DOMAIN for node in after.graph.node) == 1
    assert (input_specs(before), output_specs(before)) == (input_specs(after), output_specs(after))
    kept = ("inputs", "outputs", "axes", "values", "osa", "attentions", "parameters", "source", "depth")
    assert all(getattr(result.manifest, name) == getattr(source.manifest, name) for name in kept)
    assert OnnxParts(result.model_path).units == OnnxParts(source.model_path).units


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_of_a_graph(exported: Exported, tmp_path: Path, variant: str) -> None:
    checkpoint = exported("encoder", "onnx").parent / "encoder"
    source = export_checkpoint(checkpoint, tmp_path / "source", **VARIANTS[variant])
    sizes = ((1, 64),) if variant == "fixed" else ((1, 1), (3, 9), (7, 40))
    examples = tmp_path / "examples.npz"
    np.savez(examples, **feeds("encoder", 32, sizes[-1][1]))
    for mode in MODES:
        result = quantize(source.folder, tmp_path / mode, activations=mode, calibration=examples)
        _check_variant(source, result, sizes)


def _check_variant(source: Artifact, result: quantizing.Quantized, sizes: tuple[tuple[int, int], ...]) -> None:
    assert set(result.artifact.manifest.files) == set(source.manifest.files)
    before, after = result.sizes
    assert after < before
    with load(result.artifact.folder) as mine, load(source.folder) as theirs:
        answers = [[one.run(feeds("encoder", *size))["logits"] for one in (mine, theirs)] for size in sizes]
    for actual, expected in answers:
        assert np.abs(actual - expected).max() < 0.1 * np.abs(expected).max()


def test_weights_are_the_nearest_of_their_channel(exported: Exported, tmp_path: Path) -> None:
    source = Artifact.open(exported("vit", "onnx"))
    result = quantize(source.folder, tmp_path / "small").artifact
    before, after = initializers(source.model_path), initializers(result.model_path)
    names = [name for name in before if f"{name}_quantized" in after]
    assert len(names) == result.manifest.quantization.quantized == 6
    for name in names:
        stored, scale = after[f"{name}_quantized"], after[f"{name}_scale"]
        assert stored.dtype == np.int8
        assert np.abs(stored).max() == 127
        assert scale.size == max(scale.shape) == (10 if name == "head.weight" else stored.shape[1])
        assert np.all(np.abs(stored * scale - before[name]) <= scale * 0.5001)


@pytest.mark.parametrize("mode", ["dynamic", "static"])
def test_8_bit_products_cannot_saturate_16_bits(exported: Exported, tmp_path: Path, mode: str) -> None:
    """Only weights of 7 bits are safe on a CPU that adds u8·s8 in pairs, in 16 bits."""
    result = quantized(exported("vit", "onnx"), tmp_path / "small", mode, "vit").artifact
    stored = [x for x in initializers(result.model_path).values() if x.dtype == np.int8 and x.ndim == 2]
    assert len(stored) == 6
    assert all(2 * 255 * int(np.abs(x.astype(int)).max()) < 2**15 for x in stored)
    assert max(int(np.abs(x.astype(int)).max()) for x in stored) >= 63


def test_embeddings_are_looked_up_in_8_bits(exported: Exported, tmp_path: Path) -> None:
    source = Artifact.open(exported("encoder", "onnx"))
    result = quantize(source.folder, tmp_path / "small")
    assert len(result.selection.tables) == 1
    model = onnx.load(result.artifact.model_path)
    table = next(node for node in model.graph.node if node.name == result.selection.tables[0])
    stored = initializers(result.artifact.model_path)
    assert table.op_type == "Gather"
    assert stored[table.input[0]].dtype == np.int8
    assert not [x for x in stored.values() if x.dtype == np.float32 and x.shape == stored[table.input[0]].shape]


@pytest.mark.parametrize("mode", MODES)
def test_parts_that_are_kept_stay_as_they_were(exported: Exported, tmp_path: Path, mode: str) -> None:
    source = Artifact.open(exported("vit", "onnx"))
    result = quantized(source.folder, tmp_path / "small", mode, "vit", keep=["head", "stack.blocks.*.mlp"])
    assert result.selection.kept == (
        "stack.blocks.0.mlp.expand/MatMul",
        "stack.blocks.0.mlp.contract/MatMul",
        "head/Gemm",
    )
    before, after = initializers(source.model_path), initializers(result.artifact.model_path)
    weights = [name for name in before if "mlp" in name and before[name].ndim == 2]
    assert len(weights) == 2
    assert all(np.array_equal(before[name], after[name]) for name in weights)
    assert result.artifact.manifest.quantization.kept == result.selection.kept


@pytest.mark.parametrize(("keep", "words"), [("haed", "keep='haed' names no weight"), ("*", "names them all")])
def test_keep_must_make_sense(exported: Exported, tmp_path: Path, keep: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        quantize(exported("vit", "onnx"), tmp_path / "small", keep=[keep])
    assert not (tmp_path / "small").exists()


def test_the_manifest_says_what_was_done(exported: Exported, tmp_path: Path) -> None:
    source = Artifact.open(exported("vit", "onnx"))
    described = quantized(source.folder, tmp_path / "small", "static", "vit").artifact.manifest.quantization
    assert described.source == {"model.onnx": source.manifest.files["model.onnx"].sha256}
    assert described.calibration.examples == 64
    assert len(described.calibration.sha256) == 64
    images = feeds("vit", 64)["images"]
    assert described.calibration.ranges == {"images": (images.min(), images.max())}
    assert (described.activations, described.weight_bits) == ("static", 7)
    assert set(described.deviation) == {"logits"}
    Artifact.open(tmp_path / "small").check_files()


def test_verification_passes_and_still_finds_other_weights(exported: Exported, tmp_path: Path) -> None:
    source = exported("vit", "onnx")
    small = quantize(source, tmp_path / "small").artifact.folder
    run = verify(small, source.parent / "vit")
    assert run.certificate.passed, run.certificate.findings()
    assert run.certificate.subject["dtype"] == "w8"
    assert compare(small, source).certificate.passed
    from osa_runtime.models import load_checkpoint, save_checkpoint

    other = load_checkpoint(source.parent / "vit")
    other.stack.blocks[0].mlp.contract.weight.data.mul_(-1)
    save_checkpoint(other, tmp_path / "other")
    assert not verify(small, tmp_path / "other", VerifySettings(batches=(2,))).certificate.passed


def test_the_float32_tolerance_is_not_loosened_for_it(exported: Exported, tmp_path: Path) -> None:
    """The same file with a manifest that says fp32 fails."""
    source = exported("vit", "onnx")
    small = quantize(source, tmp_path / "small").artifact
    lying = dataclasses.replace(small.manifest, dtype="fp32")
    (small.folder / "manifest.json").write_text(lying.to_json())
    assert not verify(small.folder, source.parent / "vit", VerifySettings(batches=(2,))).certificate.passed


def test_rows_of_a_static_model_do_not_know_of_each_other(exported: Exported, tmp_path: Path) -> None:
    small = quantized(exported("vit", "onnx"), tmp_path / "small", "static", "vit").artifact.folder
    x = feeds("vit", 4)["images"]
    x[1] *= 30
    with load(small) as session:
        together = session.run({"images": x})["logits"]
        alone = np.concatenate([session.run({"images": row[None]})["logits"] for row in x])
    np.testing.assert_allclose(together, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_nan_and_inf_do_not_become_numbers(exported: Exported, tmp_path: Path, mode: str) -> None:
    small = quantized(exported("vit", "onnx"), tmp_path / "small", mode, "vit").artifact.folder
    images = feeds("vit", 3)["images"]
    images[0, 0, 1, 1], images[1, 0, 0, 0] = np.nan, np.inf
    with load(small) as session:
        broken = np.isnan(session.run({"images": images})["logits"])
    assert broken[:2].all()
    assert mode == "dynamic" or not broken[2].any()  # whose range is that of the whole batch


@pytest.mark.parametrize("model", ["vit", "encoder"])
def test_a_static_model_is_verified_beyond_its_ranges(exported: Exported, tmp_path: Path, model: str) -> None:
    """The reference is rounded and cut off in the same places."""
    source = exported(model, "onnx")
    small = quantized(source, tmp_path / "small", "static", model).artifact.folder
    certificate = verify(small, source.parent / model, VerifySettings(quick=True)).certificate
    assert (certificate.verdict, certificate.basis) == ("pass", "structure and numbers"), certificate.failures()


@pytest.mark.parametrize("factor", [0.05, 200.0], ids=["cut off", "coarse"])
def test_ranges_that_do_not_fit_the_model_fail(exported: Exported, tmp_path: Path, factor: float) -> None:
    """Graph and manifest agree on them, and the reference is rounded by them, too."""
    source = exported("vit", "onnx")
    good = quantized(source, tmp_path / "good", "static", "vit").artifact.manifest.quantization.activation_ranges
    ranges = {name: [float(np.float32(factor * end)) for end in pair] for name, pair in good.items()}
    small = quantize(source, tmp_path / "small", activations="static", ranges=ranges).artifact.folder
    certificate = verify(small, source.parent / "vit", VerifySettings(quick=True)).certificate
    assert [check.name for check in certificate.checks if not check.passed] == ["rounding"]
    assert "the recorded ranges do not fit such inputs" in certificate.failures()[0]


def test_it_needs_no_torch(exported: Exported, tmp_path: Path) -> None:
    source, examples = exported("encoder", "onnx"), calibration(tmp_path, "encoder")
    script = (
        "import sys; from osa_runtime.quantization import quantize; "
        "quantize(sys.argv[1], sys.argv[2], activations='static', calibration=sys.argv[3]); "
        "sys.exit('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", script, str(source), str(tmp_path / "small"), str(examples)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_failure_leaves_what_was_there(exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = exported("vit", "onnx"), tmp_path / "small"
    quantize(source, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def broken(path: Path) -> None:
        raise ExportError("not this one")

    monkeypatch.setattr(quantizing, "check_file", broken)
    with pytest.raises(ExportError, match="not this one"):
        quantize(source, out, keep=["head"], replace=True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


# Graphs by hand


def product_model(readers: int = 1, names: tuple[str, ...] = ("a", "b")) -> onnx.ModelProto:
    """x·W in one or two nodes that read the same W."""
    nodes = [helper.make_node("MatMul", ["x", "w"], [f"y{i}"], names[i]) for i in range(readers)]
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32), "w")
    float_type = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", float_type, ["batch", 8])],
        [helper.make_tensor_value_info(f"y{i}", float_type, ["batch", 4]) for i in range(readers)],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def test_a_weight_with_two_readers_is_left_alone() -> None:
    assert select(product_model(1), (), ()).products == ("a",)
    with pytest.raises(InputError, match="no MatMul, Gemm or Gather with a matrix of its own"):
        select(product_model(2), (), ())


def test_nodes_without_a_name_get_one() -> None:
    model = product_model(1, ("",))
    assert select(model, (), ()).products == ("MatMul_0",)
    assert model.graph.node[0].name == "MatMul_0"


def test_what_is_inside_an_attention_is_left_alone() -> None:
    call = AttentionCall("layer", ("x",), "y0")
    with pytest.raises(InputError, match="no weight to quantise"):
        select(product_model(1), (call,), ())


def rewritten() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    before, after = product_model(), product_model()
    quantize_products(after, ("a",))
    return before, after


def test_a_good_rewriting_passes() -> None:
    check_rewriting(*rewritten(), Selection(("a",), (), ()), ())


def test_a_changed_interface_is_found() -> None:
    before, after = rewritten()
    after.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    with pytest.raises(ExportError, match=r"the inputs are x: float32\[2, 8\], and were"):
        check_rewriting(before, after, Selection(("a",), (), ()), ())


def test_a_lost_function_is_found(exported: Exported) -> None:
    before = onnx.load(Artifact.open(exported("vit", "onnx")).model_path)
    after = onnx.ModelProto()
    after.CopyFrom(before)
    del after.functions[0]
    with pytest.raises(ExportError, match="the functions of orthogonal attention"):
        check_rewriting(before, after, Selection((), (), ()), ())


def test_a_core_that_was_quantised_is_found() -> None:
    before, after = rewritten()
    call = AttentionCall("layer", ("x",), "y0")
    with pytest.raises(ExportError, match="the orthogonal attention layer changed"):
        check_rewriting(before, after, Selection(("a",), (), ()), (call,))


def test_a_weight_that_was_forgotten_is_found() -> None:
    before, after = product_model(), product_model()
    with pytest.raises(ExportError, match="0 weights are stored in 8 bits, and should be 1"):
        check_rewriting(before, after, Selection(("a",), (), ()), ())


def test_an_operator_without_kernel_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = product_model()
    onnx.save(model, tmp_path / "model.onnx")
    check_file(tmp_path / "model.onnx")
    monkeypatch.setattr(checks, "place", lambda *_: _nowhere())
    with pytest.raises(ExportError, match="no kernel for MatMul"):
        check_file(tmp_path / "model.onnx")


def _nowhere() -> Any:
    from osa_runtime.inspection.kernel_coverage import NOWHERE, Gap, KernelCoverage

    return KernelCoverage("cpu", "", 1, (Gap("MatMul", (), NOWHERE, ("a",)),))
