"""The benchmark of whole models: their strength, the fused softmax, a small run, targets on made-up times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import model
import onnx
import onnx_ir as ir
import pytest
import torch
from model import build_report, verdicts
from onnx import helper
from speed.attention_contenders import spectral_norm
from speed.contest import LEAST_ROUNDS, Contest, Pace, Row
from speed.model_contenders import (
    COMPILED,
    DIGITS,
    EAGER,
    ENCODER,
    FORMATS,
    FUSED,
    ORT,
    QUICK,
    SMALLER,
    SOFTMAX,
    VIT_S,
    Footprint,
    ModelResult,
    OpenedModel,
    Subject,
    fuse_attention,
    measure_model,
)

from osa_runtime import EncoderConfig, OrthogonalSelfAttention, ViTConfig

pytestmark = pytest.mark.slow

FACTS: dict[str, Any] = {
    "machine": {"cpu": "P", "cores": 2, "versions": {"torch": "2"}},
    "threads": 2,
    "rounds": LEAST_ROUNDS,
}
PACE = Pace(rounds=2, block_seconds=0, pause=0)
TINY = Subject("tiny", ViTConfig(classes=3, dim=16, depth=2, heads=2), 16)
SEQUENCE = Subject("sequence", EncoderConfig(classes=3, vocabulary=5, max_length=9, dim=16, depth=1, heads=2), 9)


def result(subject: Subject, load: float = 0.1, missing: dict[str, str] | None = None, **times: float) -> ModelResult:
    names = {"ort": ORT, "eager": EAGER, "compiled": COMPILED, "softmax": SOFTMAX}
    rows = []
    for batch in (1, 8):
        blocks = {names[name]: [[round(1e6 * batch * value)]] * LEAST_ROUNDS for name, value in times.items()}
        errors = {names[name]: 1e-6 for name in times}
        rows.append(Row(batch, Contest(blocks, 0.0, 2), errors, {SOFTMAX: "Attention"}))
    return ModelResult(
        subject, tuple(rows), {ORT: Footprint(1 << 20, load, (5 << 20, 7 << 20), load / 4)}, missing or {}
    )


def test_the_sizes_are_those_that_are_promised() -> None:
    assert (DIGITS.config.depth, DIGITS.config.dim, DIGITS.config.heads, DIGITS.tokens) == (8, 64, 4, 16)
    assert (VIT_S.config.depth, VIT_S.config.dim, VIT_S.config.heads) == (12, 384, 6)
    assert VIT_S.config.tokens == VIT_S.tokens == 197  # type: ignore[union-attr]
    assert (ENCODER.config.depth, ENCODER.config.dim, ENCODER.tokens) == (6, 256, 4096)
    assert DIGITS.config.tokens == DIGITS.tokens  # type: ignore[union-attr]


@pytest.mark.parametrize("subject", [TINY, SEQUENCE], ids=lambda subject: subject.name)
def test_every_layer_has_the_norm_of_trained_models(subject: Subject) -> None:
    built = subject.build()
    norms = []

    def look(layer: OrthogonalSelfAttention, arguments: tuple[torch.Tensor, ...]) -> None:
        q, k, _ = layer.project(arguments[0])
        assert layer.alpha.unique().numel() == 1
        norms.append(spectral_norm(q, k, float(layer.alpha[0]) * layer.project.width**-0.5))

    for layer in built.modules():
        if isinstance(layer, OrthogonalSelfAttention):
            layer.register_forward_pre_hook(look)
    built(subject.inputs(1))
    assert norms == pytest.approx([2.0] * subject.config.depth, rel=1e-4)


def test_the_softmax_model_differs_in_its_attention_alone() -> None:
    ours, theirs = TINY.build(), TINY.build("softmax")
    assert not any(isinstance(module, OrthogonalSelfAttention) for module in theirs.modules())
    extra = {name for name, _ in ours.named_parameters()} - {name for name, _ in theirs.named_parameters()}
    assert all(name.endswith("alpha") for name in extra)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> OpenedModel:
    return OpenedModel(TINY, 1, tmp_path_factory.mktemp("tiny"), (ORT, EAGER, SOFTMAX))


def check_softmax_variants(opened: OpenedModel) -> None:
    subject = opened.subject
    array = subject.inputs(3).numpy()
    variants = {variant: run(array) for variant, run in opened._runs[SOFTMAX].items()}
    assert set(variants) == {"MatMul–Softmax–MatMul", "Attention", FUSED}
    with torch.no_grad():
        expected = subject.build("softmax")(subject.inputs(3)).numpy()
    for found in variants.values():
        assert found == pytest.approx(expected, abs=1e-4)


def test_a_small_model_meets_its_peers(opened: OpenedModel) -> None:
    assert opened.missing == {}
    check_softmax_variants(opened)
    row = opened.meet(2, PACE)
    assert set(row.contest.blocks) == {ORT, EAGER, SOFTMAX}
    assert max(row.errors.values()) < 1e-4


def test_who_is_left_out_of_batches_still_has_a_latency(opened: OpenedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened, "subject", replace(TINY, only_latency=(EAGER,)))
    assert EAGER in opened.meet(1, PACE).contest
    assert EAGER not in opened.meet(2, PACE).contest
    assert set(ENCODER.only_latency) <= set(FORMATS)


def test_the_softmax_of_sequences_of_any_length(tmp_path: Path) -> None:
    check_softmax_variants(OpenedModel(SEQUENCE, 1, tmp_path, (SOFTMAX,)))


def test_a_whole_result(opened: OpenedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("speed.model_contenders.OpenedModel", lambda *_: opened)  # exported once for all tests
    found = measure_model(TINY, PACE, 1, (ORT, EAGER, SOFTMAX))
    assert [row.place for row in found.rows] == [1, 8]
    assert set(found.footprints) == {ORT, EAGER, SOFTMAX}
    assert all(footprint.bytes_on_disk > 0 < footprint.load_seconds for footprint in found.footprints.values())
    assert {name: found.footprints[name].cached_seconds is None for name in (ORT, EAGER)} == {ORT: False, EAGER: True}
    report = build_report([found], FACTS)
    written = report.as_json()
    assert written["trustworthy"] is False
    contenders = written["models"][0]["batches"][1]["contenders"]
    assert contenders[ORT]["rows_per_second"] == pytest.approx(8e3 / contenders[ORT]["median_ms"])
    text = report.as_markdown()
    assert "## tiny: 2 × 16, 2 heads, 16 tokens" in text
    assert "Do not trust this run" in text
    report.write(tmp_path)
    assert (tmp_path / "model.md").read_text() == text


def test_a_wrong_answer_has_no_time_and_is_told(opened: OpenedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    right = opened._runs[EAGER][""]
    monkeypatch.setitem(opened._runs, ORT, {"": lambda array: 2 * right(array)})
    monkeypatch.setattr(opened, "missing", {})
    assert ORT not in opened.meet(1, PACE).contest
    assert "wrong answer" in opened.missing[f"{ORT}, batch 1"]


def test_smaller_models_have_a_time_and_their_distance(tmp_path: Path) -> None:
    opened = OpenedModel(TINY, 1, tmp_path, (ORT, *SMALLER))
    assert opened.missing == {}
    rows = (opened.meet(1, PACE),)
    assert set(rows[0].contest.blocks) == {ORT, *SMALLER}
    assert rows[0].errors["fp16"] < 0.01 < rows[0].errors["8 bits, static"] < 1
    footprints = opened.weigh(rows)
    assert footprints["8-bit weights"].bytes_on_disk < footprints[ORT].bytes_on_disk
    text = build_report([ModelResult(TINY, rows, footprints, {})], FACTS).as_markdown()
    assert "Batch 1, speed relative to fp32: fp16 " in text


def test_targets_met_and_missed() -> None:
    rows = [result(VIT_S, ort=10.0, eager=16.0, compiled=9.0), result(DIGITS, load=0.2, ort=1.0, eager=3.0)]
    met = {v.target: v.met for v in verdicts(rows)}
    assert met == {
        "ViT-S in ONNX Runtime, batch 1: 1.5 × as fast as eager": True,
        "ViT-S in ONNX Runtime, batch 8: 1.5 × as fast as eager": True,
        "ViT-S in ONNX Runtime, batch 1: 1 × as fast as torch.compile": False,
        "ViT-S in ONNX Runtime, batch 8: 1 × as fast as torch.compile": False,
        "ViT-S is loaded in at most 500 ms": True,
        "ViT-S is loaded in at most 200 ms from the cache": True,
        "digits ViT is loaded in at most 150 ms": False,
        "digits ViT is loaded in at most 40 ms from the cache": False,
    }


def test_a_contender_that_is_missing_is_not_a_success() -> None:
    judged = list(verdicts([result(VIT_S, missing={COMPILED: "no compiler"}, ort=1.0, eager=2.0)]))
    assert [v.met for v in judged if "eager" in v.target or "compile" in v.target] == [True, True, None, None]
    text = build_report([result(VIT_S, missing={COMPILED: "no compiler"}, ort=1.0, eager=2.0)], FACTS).as_markdown()
    assert "no figure for torch.compile: no compiler" in text
    assert "Batch 1, in ONNX Runtime, times as fast: 2.0× eager, – torch.compile" in text


def test_a_graph_without_attention_is_not_fused() -> None:
    value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    out = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    empty = helper.make_model(helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [value], [out]))
    with pytest.raises(ValueError, match="no Attention"):
        fuse_attention(ir.from_proto(empty), 2)


def test_an_attention_in_other_surroundings_is_not_fused() -> None:
    names = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 2, 3, 4]) for name in "qkvy"]
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"])
    alone = helper.make_model(helper.make_graph([node], "g", names[:3], names[3:]))
    with pytest.raises(ValueError, match="nothing, expected one Slice"):
        fuse_attention(ir.from_proto(alone), 2)


def test_unknown_models_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        model.main(["--models", "digits,other"])
    assert "other; known are digits, vit-s, encoder" in capsys.readouterr().err


def test_the_quick_models_bear_the_names_of_the_full_ones() -> None:
    assert {subject.name for subject in QUICK} <= {DIGITS.name, VIT_S.name, ENCODER.name}
