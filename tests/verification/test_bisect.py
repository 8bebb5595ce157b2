"""Every change of an exported model shows, and bisection names the layer at fault."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from sabotage import (
    broken_onnx,
    broken_pt2,
    broken_torchscript,
    change_weight,
    double_scale,
    drop_squaring,
    fix_batch,
    overflow,
    perturb,
    poison,
    rename_output,
    signed,
)

from osa_runtime.parity.certificate import Certificate
from osa_runtime.verification import VerifySettings, verify

Deep = Callable[..., Path]
Checkpoint = Callable[[str], Path]
ATTENTION, MLP = "stack.blocks.1.attention", "stack.blocks.1.mlp"


def judged(artifact: Path, checkpoint: Path | None, tmp_path: Path) -> Certificate:
    return verify(artifact, checkpoint, VerifySettings(bisect=tmp_path / "repro")).certificate


@pytest.mark.parametrize(
    ("breaking", "layer"),
    [
        (lambda m: change_weight(m, f"{MLP}.expand/MatMul.weight", perturb), MLP),
        (lambda m: change_weight(m, f"{ATTENTION}.project/MatMul.weight", perturb), ATTENTION),
        (lambda m: change_weight(m, "head.weight", perturb), "head"),
        (lambda m: double_scale(m, ATTENTION), ATTENTION),
        (drop_squaring, "stack.blocks.0.attention"),
        (lambda m: change_weight(m, f"{ATTENTION}.out/MatMul.weight", np.transpose), ATTENTION),
        (lambda m: change_weight(m, f"{MLP}.contract/MatMul.weight", poison), MLP),
    ],
    ids=["weight", "projection-weight", "head-weight", "scale", "squaring", "transposed", "nan"],
)
def test_a_broken_layer_is_found_and_named(
    breaking: Callable[[onnx.ModelProto], None], layer: str, deep: Deep, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    artifact = broken_onnx(deep("vit"), tmp_path / "broken", breaking)
    certificate = judged(artifact, checkpoint("vit"), tmp_path)
    assert not certificate.passed
    assert certificate.bisection is not None
    assert certificate.bisection.alone == layer
    assert certificate.bisection.cumulative == layer


@pytest.mark.parametrize("inlined", [False, True], ids=["functions", "inlined"])
def test_a_broken_layer_of_a_sequence_model_is_named(
    inlined: bool, deep: Deep, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    name, options = ("encoder", {"functions": "inline"}) if inlined else ("branching", {})
    layer = "stack.blocks.2.attention"
    weight = ".project/MatMul.weight" if inlined else "/OrthogonalSelfAttention.constant_1"
    artifact = broken_onnx(
        deep(name, **options), tmp_path / "broken", lambda m: change_weight(m, f"{layer}{weight}", perturb)
    )
    certificate = judged(artifact, checkpoint(name), tmp_path)
    assert certificate.bisection is not None
    assert certificate.bisection.alone == layer


@pytest.mark.parametrize("kind", ["torchscript", "pt2"])
def test_a_broken_layer_of_a_torch_format_is_named(
    kind: str, deep: Deep, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    source, out = deep("vit", format=kind), tmp_path / "broken"
    if kind == "torchscript":
        artifact = broken_torchscript(
            source, out, lambda m: dict(m.named_parameters())[f"{MLP}.expand.weight"][1, 2].add_(1e-3)
        )
    else:
        artifact = broken_pt2(source, out, lambda weights: weights[f"{MLP}.expand.weight"][1, 2].add_(1e-3))
    certificate = judged(artifact, checkpoint("vit"), tmp_path)
    assert not certificate.passed
    assert certificate.bisection is not None
    assert certificate.bisection.alone == MLP
    assert reproduced(tmp_path / "repro") == 1


def reproduced(folder: Path) -> int:
    done = subprocess.run(
        [sys.executable, str(folder / "reproduce.py")], capture_output=True, text=True, check=False, cwd=folder.parent
    )
    assert "relative error" in done.stdout, done.stderr
    return done.returncode


def test_the_repro_folder_shows_the_fault_and_its_mending(deep: Deep, checkpoint: Checkpoint, tmp_path: Path) -> None:
    layer = "stack.blocks.2.attention"
    artifact = broken_onnx(deep("encoder"), tmp_path / "broken", lambda m: double_scale(m, layer))
    judged(artifact, checkpoint("encoder"), tmp_path)
    folder = tmp_path / "repro"
    assert sorted(path.name for path in folder.iterdir()) == ["expected.npz", "inputs.npz", "reproduce.py", "unit.onnx"]
    assert reproduced(folder) == 1
    model = onnx.load(folder / "unit.onnx")
    change_weight(model, "doubled", lambda scale: scale / 2)
    onnx.save(model, folder / "unit.onnx")
    assert reproduced(folder) == 0


def test_a_missing_squaring_shows_without_any_reference(deep: Deep, tmp_path: Path) -> None:
    """A = exp(S/2) is orthogonal and keeps lengths; only its distance from exp(S)·V gives it away."""
    certificate = judged(broken_onnx(deep("vit"), tmp_path / "broken", drop_squaring), None, tmp_path)
    failed = [layer for layer in certificate.layers if not layer.passed]
    assert not certificate.passed
    assert {layer.layer for layer in failed} == {f"stack.blocks.{i}.attention" for i in range(3)}
    assert all("not exp(S)" in layer.reason for layer in failed)
    assert max(head.defect for layer in failed for head in layer.heads) < 1e-5


def test_an_attention_that_is_not_orthogonal_shows_without_any_reference(deep: Deep, tmp_path: Path) -> None:
    def stretch(model: onnx.ModelProto) -> None:
        function = next(f for f in model.functions if f.name == "OrthogonalAttention")
        function.node[-1].input[0], old = "stretched", function.node[-1].input[0]
        factor = onnx.helper.make_node("Constant", [], ["factor"], value_float=1.001)
        function.node.insert(len(function.node) - 1, factor)
        function.node.insert(len(function.node) - 1, onnx.helper.make_node("Mul", [old, "factor"], ["stretched"]))

    certificate = judged(broken_onnx(deep("vit"), tmp_path / "broken", stretch), None, tmp_path)
    assert not certificate.passed
    assert max(head.defect for layer in certificate.layers for head in layer.heads) == pytest.approx(2e-3, rel=0.1)


def test_overflow_in_half_precision_fails(deep: Deep, checkpoint: Checkpoint, tmp_path: Path) -> None:
    artifact = broken_onnx(deep("vit", dtype="fp16"), tmp_path / "broken", lambda m: overflow(m, "stack.blocks.1"))
    certificate = judged(artifact, checkpoint("vit"), tmp_path)
    assert not certificate.passed
    assert any("beyond the range of fp16" in failure for failure in certificate.failures())
    assert certificate.bisection is not None
    assert certificate.bisection.alone == MLP


def test_nan_in_the_checkpoint_and_the_artifact_fails(deep: Deep, checkpoint: Checkpoint, tmp_path: Path) -> None:
    """NaN equals NaN for nobody: without a reference, too."""
    artifact = broken_onnx(
        deep("vit"), tmp_path / "broken", lambda m: change_weight(m, "head.weight", lambda w: w * np.nan)
    )
    assert judged(artifact, None, tmp_path).failed


def test_a_renamed_output_fails(deep: Deep, checkpoint: Checkpoint, tmp_path: Path) -> None:
    artifact = broken_onnx(deep("vit"), tmp_path / "broken", lambda m: rename_output(m, "scores"))
    certificate = judged(artifact, checkpoint("vit"), tmp_path)
    assert [check.name for check in certificate.checks if not check.passed] == ["interface"]


def test_an_output_renamed_in_the_manifest_too_fails(deep: Deep, checkpoint: Checkpoint, tmp_path: Path) -> None:
    artifact = broken_onnx(deep("vit"), tmp_path / "broken", lambda m: rename_output(m, "scores"))
    signed(artifact, outputs=[{"name": "scores", "dtype": "float32", "shape": ["batch", 10]}])
    certificate = judged(artifact, checkpoint("vit"), tmp_path)
    assert any("its outputs are scores, expected logits" in failure for failure in certificate.failures())


def test_a_static_axis_fails(deep: Deep, checkpoint: Checkpoint, tmp_path: Path) -> None:
    artifact = broken_onnx(deep("vit"), tmp_path / "broken", lambda m: fix_batch(m, 2))
    certificate = judged(artifact, checkpoint("vit"), tmp_path)
    sizes = {case.sizes["batch"] for case in certificate.cases}
    assert sizes > {1, 2, 5, 33}
    assert {case.sizes["batch"] for case in certificate.cases if case.verdict == "fail"} == sizes - {2}
    assert any("does not run" in failure for failure in certificate.failures())


@pytest.mark.parametrize("kind", ["onnx", "torchscript"])
def test_a_wrong_checkpoint_fails(kind: str, deep: Deep, checkpoint: Checkpoint, tmp_path: Path) -> None:
    certificate = judged(deep("vit", format=kind), checkpoint("other"), tmp_path)
    assert not certificate.passed
    assert any("exported from other weights" in note for note in certificate.notes)
    assert certificate.bisection is not None
    assert certificate.bisection.alone == "embed"


def test_a_checkpoint_of_another_model_fails(deep: Deep, checkpoint: Checkpoint, tmp_path: Path) -> None:
    certificate = judged(deep("vit"), checkpoint("encoder"), tmp_path)
    assert [check.name for check in certificate.checks if not check.passed] == ["interface"]


def test_a_changed_file_fails_by_its_hash(deep: Deep, checkpoint: Checkpoint, tmp_path: Path) -> None:
    artifact = broken_onnx(deep("vit"), tmp_path / "broken", lambda m: None)
    model = onnx.load(artifact / "model.onnx")
    model.doc_string = "changed"
    onnx.save(model, artifact / "model.onnx")
    certificate = judged(artifact, checkpoint("vit"), tmp_path)
    assert [check.name for check in certificate.checks if not check.passed] == ["files"]


def test_the_unbroken_ones_pass(deep: Deep, checkpoint: Checkpoint, tmp_path: Path) -> None:
    """The changes make the tests above fail, nothing else."""
    for name, options in (("vit", {}), ("branching", {}), ("encoder", {}), ("vit", {"dtype": "fp16"})):
        certificate = judged(deep(name, **options), checkpoint(name), tmp_path)
        assert certificate.passed, certificate.failures()
        assert certificate.bisection is None
    assert not (tmp_path / "repro").exists()
    assert torch.get_num_threads() >= 1
