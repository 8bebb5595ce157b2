"""Parts are the whole of a model: whatever is wrong in a graph is wrong in exactly one of them, which is named."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from sabotage import broken_onnx, broken_pt2, broken_torchscript, change_weight, insert, overflow

from made_once import export_checkpoint
from osa_runtime.exporters.eager import Eager
from osa_runtime.models import EncoderConfig, SkiplessEncoder, load_checkpoint, save_checkpoint
from osa_runtime.parity.comparison import Tolerance
from osa_runtime.parity.feeds import Case
from osa_runtime.runtime.device import DeviceSettings
from osa_runtime.verification import VerifySettings, verify
from osa_runtime.verification.bisect import Suspicion, _write_part, bisect
from osa_runtime.verification.inside.eager_parts import EagerParts
from osa_runtime.verification.inside.onnx_parts import OnnxParts
from osa_runtime.verification.inside.onnx_slicing import GraphIndex
from osa_runtime.verification.subject import Subject
from osa_runtime.verification.unit_checks import Parties, check_parts, partition

Deep = Callable[..., Path]
Checkpoint = Callable[[str], Path]
FORMATS = ("onnx", "torchscript", "pt2")


def given(name: str) -> Case:
    generator = np.random.default_rng(0)
    if name == "vit":
        return Case("random", {"batch": 2}, {"images": generator.standard_normal((2, 1, 8, 8)).astype(np.float32)})
    vectors = generator.standard_normal((2, 21, 5)).astype(np.float32)
    feeds = {"tokens": vectors if name == "normed" else generator.integers(0, 11, (2, 21))}
    return Case("padded", {"batch": 2, "tokens": 21}, feeds | {"mask": np.arange(21) < np.array([[21], [8]])})


def parties(model_parts: object, checkpoint: Path, case: Case) -> Parties:
    model = load_checkpoint(checkpoint)
    eager, oracle = (
        EagerParts(Eager(model, list(case.feeds), ["logits"], dtype), case.feeds) for dtype in ("fp32", "fp64")
    )
    return Parties(model_parts, eager, oracle)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["vit", "normed"])
def test_every_changed_node_is_wrong_in_one_part(name: str, deep: Deep, checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Each node with floating-point values in turn is off by a hundredth (every fourth of the longer graph)."""
    whole, case = onnx.load(deep(name) / "model.onnx"), given(name)
    index = GraphIndex(whole)
    honest = parties(OnnxParts(deep(name) / "model.onnx", threads=1), checkpoint(name), case)
    parts = [part.name for part in partition(honest.model_parts, honest.eager)]
    seen = set()
    for node in whole.graph.node[:: 1 if name == "vit" else 4]:
        if index.types.get(node.output[0]) != TensorProto.FLOAT:
            continue
        changed = onnx.ModelProto()
        changed.CopyFrom(whole)
        insert(changed, node.output[0], "factor = Constant <value_float = 1.01> () y = Mul (x, factor)")
        onnx.save(changed, tmp_path / "model.onnx")
        model_parts = OnnxParts(tmp_path / "model.onnx", threads=1)
        results = check_parts(Parties(model_parts, honest.eager, honest.oracle), case, Tolerance(1e-5))
        wrong = [result.unit for result in results if not result.passed]
        owner = node.name.rpartition("/")[0]
        assert len(wrong) == 1, (node.name, wrong)
        assert wrong[0] in parts
        # What is put behind the last node of a module is on the way to the next one.
        start, _, end = wrong[0].partition(" → ")
        inside = f"{owner}.".startswith(f"{start}.")
        assert inside or (end and (not owner or end.startswith(owner) or start.startswith(owner))), (node.name, wrong)
        seen.add(wrong[0])
    assert len(seen) > len(parts) / 3


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("vit", kind) for kind in FORMATS),
        *(("normed", kind) for kind in FORMATS),
        *(("branching", kind) for kind in ("onnx", "torchscript")),  # a branching pt2: in inside/test_torch_parts.py
        ("encoder", "pt2"),
    ],
)
def test_honest_parts_are_right_and_complete(name: str, kind: str, deep: Deep, checkpoint: Checkpoint) -> None:
    case = given(name)
    subject = Subject.open(deep(name, format=kind), DeviceSettings(threads=1))
    with subject.session:
        results = list(check_parts(parties(subject.model_parts(), checkpoint(name), case), case, Tolerance(1e-5)))
    assert all(result.passed for result in results), results
    names = [result.unit for result in results]
    last = "stack.norm" if name == "normed" else "stack.blocks.2.mlp"
    first = "stack.blocks.0.attention_norm" if name == "normed" else "stack.blocks.0.attention"
    assert {f"embed → {first}", f"{last} → head", "embed", "head"} <= set(names)


def shifted(source: Path, out: Path, kind: str) -> Path:
    if kind == "onnx":
        return broken_onnx(
            source, out, lambda model: change_weight(model, "Slice.constant_0", lambda w: np.roll(w, 1, 1))
        )
    if kind == "torchscript":
        return broken_torchscript(source, out, lambda module: roll(dict(module.named_buffers())["positions"]))
    return broken_pt2(source, out, lambda weights: roll(weights["positions"]), constants=True)


def roll(positions: torch.Tensor) -> None:
    positions.copy_(positions.roll(1, 1))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("normed", kind) for kind in FORMATS),
        ("encoder", "onnx"),
        *(pytest.param("encoder", kind, marks=pytest.mark.long) for kind in ("torchscript", "pt2")),
    ],
)
def test_shifted_positions_blame_nobody_else_and_can_be_reproduced_and_mended(
    name: str, kind: str, deep: Deep, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    folder, honest = tmp_path / "repro", deep(name, format=kind)
    settings = VerifySettings(bisect=folder, lengths=[19], batches=[2])
    certificate = verify(shifted(honest, tmp_path / "broken", kind), checkpoint(name), settings).certificate
    first = "stack.blocks.0.attention" + ("_norm" if name == "normed" else "")
    assert certificate.bisection is not None
    assert certificate.bisection.alone == certificate.bisection.cumulative == f"embed → {first}"
    assert [unit.unit for unit in certificate.units if not unit.passed] == [f"embed → {first}"]
    assert reproduced(folder) == 1
    mend(folder, honest, checkpoint(name), certificate.bisection.alone, certificate.bisection.case)
    assert reproduced(folder) == 0


def mend(folder: Path, honest: Path, checkpoint: Path, part: str, case: str) -> None:
    """Put the same part of the honest artifact in place of the broken one, for the same case."""
    run = verify(honest, checkpoint, VerifySettings(lengths=[19], batches=[2]))
    chosen = next(one for one in run.cases if one.name == case)
    subject = Subject.open(honest, DeviceSettings())
    with subject.session:
        both = parties(subject.model_parts(), checkpoint, chosen)
        found = next(one for one in partition(both.model_parts, both.eager) if one.name == part)
        (folder.parent / "mended").mkdir()
        written, _ = _write_part(folder.parent / "mended", both, found, chosen)
    shutil.copy(folder.parent / "mended" / written.file, folder / written.file)


def reproduced(folder: Path) -> int:
    done = subprocess.run(
        [sys.executable, str(folder / "reproduce.py")], capture_output=True, text=True, check=False, cwd=folder.parent
    )
    assert "relative error" in done.stdout, done.stderr
    return done.returncode


def test_bisection_starts_from_the_case_that_failed(deep: Deep, checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Right for small batches, and so for every part at its usual size."""
    negated = """
        rows = Shape <start = 0, end = 1> (x)  eight = Constant <value_ints = [8]> ()
        many = Greater (rows, eight)  negative = Neg (x)  y = Where (many, negative, x)
    """
    artifact = broken_onnx(deep("vit"), tmp_path / "broken", lambda model: insert(model, "logits", negated))
    folder = tmp_path / "repro"
    certificate = verify(artifact, checkpoint("vit"), VerifySettings(batches=[2, 9], bisect=folder)).certificate
    assert certificate.bisection is not None
    assert certificate.bisection.alone == certificate.bisection.cumulative == "head → logits"
    assert "batch=9" in certificate.bisection.case
    assert len(np.load(folder / "expected.npz")["truth"]) == 9
    assert reproduced(folder) == 1


def test_nobody_is_blamed_where_no_part_is_wrong(deep: Deep, checkpoint: Checkpoint, tmp_path: Path) -> None:
    """An honest artifact that is said to have failed as a whole."""
    case, model_parts = given("vit"), OnnxParts(deep("vit") / "model.onnx", threads=1)
    suspicion = Suspicion(case, True, lambda _: Tolerance(1e-5))
    units, bisection = bisect(parties(model_parts, checkpoint("vit"), case), [suspicion], tmp_path / "repro")
    assert units
    assert bisection is not None
    assert bisection.alone is None
    assert not (tmp_path / "repro").exists()


def test_an_overflow_inside_a_part_can_be_reproduced(deep: Deep, checkpoint: Checkpoint, tmp_path: Path) -> None:
    """ONNX Runtime computes in float32 and rounds the result, in which nothing is to be seen."""
    broken = broken_onnx(deep("vit", dtype="fp16"), tmp_path / "broken", lambda m: overflow(m, "stack.blocks.1"))
    certificate = verify(broken, checkpoint("vit"), VerifySettings(quick=True, bisect=tmp_path / "repro")).certificate
    assert certificate.bisection is not None
    assert certificate.bisection.alone == "stack.blocks.1.mlp"
    assert reproduced(tmp_path / "repro") == 1


@pytest.mark.slow
def test_scores_that_a_mask_takes_out_of_half_precision_are_no_overflow(tmp_path: Path) -> None:
    """They are -Inf before a softmax, and so on purpose."""
    torch.manual_seed(0)
    config = EncoderConfig(classes=3, features=5, dim=8, heads=2, depth=1, attention="softmax", max_length=40)
    save_checkpoint(SkiplessEncoder(config), tmp_path / "checkpoint")
    export_checkpoint(tmp_path / "checkpoint", tmp_path / "half", dtype="fp16")
    certificate = verify(tmp_path / "half", tmp_path / "checkpoint", VerifySettings(quick=True)).certificate
    assert certificate.passed, certificate.failures()


def test_a_layer_that_cannot_be_cut_out_is_named_on_the_way(deep: Deep, checkpoint: Checkpoint, tmp_path: Path) -> None:
    """A second tensor goes into the layer, so that it has no clean boundary; it is checked with its neighbours."""

    def leak(model: onnx.ModelProto) -> None:
        node = next(node for node in model.graph.node if node.name == "stack.blocks.1.mlp/LeakyRelu")
        model.graph.initializer.append(numpy_helper.from_array(np.float32(1e-2), "hundredth"))
        model.graph.initializer.append(numpy_helper.from_array(np.array([1, 2]), "axes"))
        nodes = [
            helper.make_node("ReduceMean", ["embed/Add", "axes"], ["leak/mean"], "stack.blocks.1.mlp/Leak"),
            helper.make_node("Mul", ["leak/mean", "hundredth"], ["leak/part"], "stack.blocks.1.mlp/Part"),
            helper.make_node("Add", [node.input[0], "leak/part"], ["leak"], "stack.blocks.1.mlp/Add"),
        ]
        place = list(model.graph.node).index(node)
        node.input[0] = "leak"
        for offset, extra in enumerate(nodes):
            model.graph.node.insert(place + offset, extra)

    artifact = broken_onnx(deep("vit"), tmp_path / "broken", leak)
    certificate = verify(artifact, checkpoint("vit")).certificate
    assert certificate.bisection is not None
    assert certificate.bisection.alone == (
        "stack.blocks.1.attention → stack.blocks.2.attention (with stack.blocks.1.mlp)"
    )
