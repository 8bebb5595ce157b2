"""The benchmark of whole models: their strength, the fused softmax, a small run, targets on made-up times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import model
import pytest
import torch
from contenders.models import (
    CACHED,
    COMPILED,
    DIGITS,
    DISK,
    EAGER,
    ENCODER,
    FUSED,
    LOAD,
    MEMORY,
    ORT,
    QUICK,
    SMALLER,
    SOFTMAX,
    VIT_S,
    OpenedModel,
    Point,
    Subject,
)
from contenders.operators import spectral_norm
from driver.contest import Pace, Row
from model import targets

from benchmark_rows import FACTS, made_up
from osa_runtime import EncoderConfig, OrthogonalSelfAttention, ViTConfig

pytestmark = pytest.mark.slow

PACE = Pace(rounds=2, block_seconds=0, pause=0)
TINY = Subject("tiny", ViTConfig(classes=3, dim=16, depth=2, heads=2), 16)
SEQUENCE = Subject("sequence", EncoderConfig(classes=3, vocabulary=5, max_length=9, dim=16, depth=1, heads=2), 9)


def rows_of(subject: Subject, load: float = 100.0, **times: float) -> dict[Point, Row]:
    names = {"ort": ORT, "eager": EAGER, "compiled": COMPILED, "softmax": SOFTMAX}
    figures: dict[str, Any] = {ORT: {LOAD: load, CACHED: load / 4}}
    found = {}
    for batch in (1, 8):
        place, measured = Point(subject.name, batch), {names[name]: batch * value for name, value in times.items()}
        found[place] = made_up(measured, place, figures=figures if batch == 1 else {})
    return found


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
    row = opened.contest(8).measure(PACE)
    assert set(row.blocks) == {ORT, EAGER, SOFTMAX}
    assert max(row.errors.values()) < 1e-4


def test_the_softmax_of_sequences_of_any_length(tmp_path: Path) -> None:
    check_softmax_variants(OpenedModel(SEQUENCE, 1, tmp_path, (SOFTMAX,)))


def test_a_whole_result(opened: OpenedModel, tmp_path: Path) -> None:
    rows = [opened.contest(batch).measure(PACE) for batch in TINY.batches]
    for name in (ORT, EAGER, SOFTMAX):
        first, second = (dict(row.figures[name]) for row in rows)
        assert set(second) == {MEMORY}  # loads and size are those of all batches
        assert set(first) == {MEMORY, DISK, LOAD} | (set() if name == EAGER else {CACHED})
        assert all(value is not None and value > 0 for value in (*first.values(), *second.values()))
    report = model.BENCHMARK.report(rows, FACTS)
    assert report.as_json()["trustworthy"] is False
    text = report.as_markdown()
    assert "| model | tiny | tiny |" in text
    assert "| batch | 1 | 8 |" in text
    assert f"## {LOAD}" in text
    assert f"| {ORT} × {EAGER} |" in text
    report.write(tmp_path)
    assert (tmp_path / "model.md").read_text() == text


def test_a_wrong_answer_has_no_time_and_is_told(opened: OpenedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    right = opened._runs[EAGER][""]
    monkeypatch.setitem(opened._runs, ORT, {"": lambda array: 2 * right(array)})
    row = opened.contest(1).measure(PACE)
    assert ORT not in row
    assert "wrong answer" in row.missing[ORT]


def test_what_cannot_be_prepared_has_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("no  compiler")

    monkeypatch.setattr(torch, "compile", lambda _: fails)
    opened = OpenedModel(TINY, 1, tmp_path, (EAGER, COMPILED))
    assert opened.contest(1).missing == {COMPILED: "RuntimeError: no compiler"}
    assert COMPILED not in opened.contest(1).contenders


def test_smaller_models_have_a_time_and_their_distance(tmp_path: Path) -> None:
    opened = OpenedModel(TINY, 1, tmp_path, (ORT, *SMALLER))
    assert opened.missing == {}
    row = opened.contest(1).measure(PACE)
    assert set(row.blocks) == {ORT, *SMALLER}
    assert row.errors["fp16"] < 0.01 < row.errors["8 bits, static"] < 1
    sizes = {name: row.figure(name, DISK) for name in row.blocks}
    assert sizes["8-bit weights"] < sizes[ORT]  # type: ignore[operator]
    assert "| fp16 × fp32 | " in model.BENCHMARK.report([row], FACTS).as_markdown()


def test_targets_met_and_missed() -> None:
    rows = rows_of(VIT_S, ort=10.0, eager=16.0, compiled=9.0) | rows_of(DIGITS, load=200.0, ort=1.0, eager=3.0)
    assert {v.target: v.met for v in targets(rows)} == {
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
    judged = list(targets(rows_of(VIT_S, ort=1.0, eager=2.0)))
    assert [v.met for v in judged if "eager" in v.target or "compile" in v.target] == [True, True, None, None]
    assert [v.met for v in targets({})] == [None] * 8


def test_unknown_models_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        model.BENCHMARK.run(["--models", "digits,other"])
    assert "other; known are digits, vit-s, encoder" in capsys.readouterr().err


def test_the_quick_models_bear_the_names_of_the_full_ones() -> None:
    assert {subject.name for subject in QUICK} <= {DIGITS.name, VIT_S.name, ENCODER.name}
