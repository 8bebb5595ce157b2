"""The page of a certificate: complete, self-contained, and harmless whatever the certificate holds."""

from __future__ import annotations

import dataclasses
import math
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from osa_runtime.errors import MissingDependencyError, StorageError
from osa_runtime.parity.certificate import (
    Bisection,
    CaseResult,
    Certificate,
    Check,
    HeadResult,
    LayerResult,
    OutputResult,
    Signature,
    UnitResult,
    read_certificate,
)
from osa_runtime.verification.page.document import write_page

pytestmark = pytest.mark.slow

pytest.importorskip("matplotlib")

HOSTILE = "--></style><script>alert(1)</script>\"'&<img src=x>$\\frac{1}$"
VOID = {"meta", "br", "img"}


class Outline(HTMLParser):
    """The elements and texts of a page; fails where tags do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)


def metrics(error: float, **other: float | None) -> dict[str, Any]:
    return dict(
        max_abs=error, max_rel=error, rms=error, cosine=1.0, ulp_p50=1.0, ulp_p99=12.5, ulp_max=4321.0, top1=1.0
    ) | dict(other)


def output(error: float = 1e-6, eager: float | None = 2e-6, **changes: Any) -> OutputResult:
    theirs = None if eager is None else metrics(eager)
    result = OutputResult("logits", "pass", "fine", 2e-5, error, metrics(error), theirs, metrics(3e-6))
    return dataclasses.replace(result, **changes)


def case(kind: str = "random", *results: OutputResult, **sizes: int) -> CaseResult:
    return CaseResult(kind, sizes or {"batch": 2}, 1.5, results or (output(),))


def layer(
    name: str, party: str = "artifact", heads: int = 4, defect: float | None = 1e-7, **changes: Any
) -> LayerResult:
    some = tuple(HeadResult(defect, 0.9999999, 1.0000001, 1.2, 2e-7) for _ in range(heads))  # type: ignore[arg-type]
    result = LayerResult(name, party, "random batch=2", some, 2, 1.9, None, 2e-6, True, "orthogonal")  # type: ignore[arg-type]
    return dataclasses.replace(result, **changes)


def unit(name: str, alone: float | None = 3e-7, **changes: Any) -> UnitResult:
    return dataclasses.replace(UnitResult(name, alone, 2e-7, 6e-6, True, "fine"), **changes)


def certificate(**changes: Any) -> Certificate:
    names = [f"stack.blocks.{i}.attention" for i in range(3)]
    subject = {"name": "digits-onnx", "format": "onnx", "dtype": "fp32", "files": {"model.onnx": "ab" * 32}}
    plain: dict[str, Any] = dict(
        kind="verify",
        created="2026-01-02T03:04:05+00:00",
        subject=subject,
        reference={"kind": "checkpoint", "model": "SkiplessViT", "sha256": "cd" * 32},
        settings={"seed": 7, "batches": None, "device": "cpu", "threads": None},
        versions={"python": "3.11", "numpy": "2.4"},
        checks=(Check("files", True, "every file has its hash"),),
        cases=(case(batch=1), case(batch=2), case("large", batch=2)),
        layers=tuple(layer(name, party) for party in ("artifact", "eager") for name in names),
        units=tuple(unit(name) for name in ("embed", *names, "head")),
        histogram={"log10_edges": [-8.0, -7.5, -7.0, -6.5], "counts": [0, 3, 9]},
    )
    return Certificate(**plain | changes)


def broken() -> Certificate:
    units = (unit("embed"), unit("3.attention", 0.04, passed=False, reason="relative error 0.04, tolerance 6e-06"))
    units = tuple(
        dataclasses.replace(u, cumulative=e, cumulative_tolerance=9e-6, cumulative_passed=e < 1e-3)
        for u, e in zip(units, (1e-7, 0.04), strict=True)
    )
    return certificate(
        units=units,
        cases=(case("random", output(0.01, verdict="fail", reason="relative error 0.01, tolerance 2e-05")),),
        bisection=Bisection("3.attention", "3.attention", "random batch=2", "fault"),
    )


def page(of: Certificate, folder: Path) -> Outline:
    write_page(of, folder / "page.html")
    return Outline((folder / "page.html").read_text(encoding="utf-8"))


def test_passing_certificate_shows_verdict_parties_and_every_plot(tmp_path: Path) -> None:
    shown = page(certificate(), tmp_path)
    for said in ("✓ PASS", "digits-onnx", "SkiplessViT", "ab" * 32, "cd" * 32, "02 January 2026, 03:04:05 UTC"):
        assert said in shown.text
    assert "✗" not in shown.text.replace("✗ marks", "")
    assert shown.count("svg") == 4  # parts, heads, sizes, histogram
    assert {"artifact from float64", "eager from float64", "ULP p99", "4,321.0"} <= set(shown.texts)


def test_a_pass_beside_a_figure_above_its_limit_says_why(tmp_path: Path) -> None:
    above = output(3e-5, reason="rounding explains up to 4e-05")
    apart = output(parity=metrics(9e-5), reason="it is nearer to float64 than eager")
    shown = page(certificate(cases=(case("random", above), case("large", apart), case("mixed"))), tmp_path)
    assert above.reason in shown.text
    assert apart.reason in shown.text
    assert "fine" not in shown.texts


def test_basis_and_signature_are_shown(tmp_path: Path) -> None:
    shown = page(certificate(signature=Signature("ed25519", "ab" * 32, "cd" * 64)), tmp_path)
    assert "numbers only: " in shown.texts
    assert "a fault that none of these cases meets would not be seen" in shown.text
    assert "ab" * 32 in shown.texts
    alone = page(certificate(kind="consistency", reference=None), tmp_path)
    assert "≈ CONSISTENT" in alone.text
    assert not re.search("PASS|[Vv]erified", alone.text)


def test_failures_stand_at_the_top_with_the_part_at_fault(tmp_path: Path) -> None:
    shown = page(broken(), tmp_path)
    assert "✗ FAIL" in shown.text
    assert shown.text.index("What failed (2)") < shown.text.index("Where the fault is") < shown.text.index("Checks")
    for said in ("3.attention: relative error 0.04, tolerance 6e-06", "python fault/reproduce.py", "artifact, 5,000 ×"):
        assert said in shown.text


def test_repro_that_could_not_be_written_is_no_command(tmp_path: Path) -> None:
    bad = dataclasses.replace(broken(), bisection=Bisection(None, "head", "random", "not written: the disk is full"))
    shown = page(bad, tmp_path)
    assert "The folder that reproduces it was not written: the disk is full" in shown.text
    assert "reproduce.py" not in shown.text


def test_page_needs_nothing_else(tmp_path: Path) -> None:
    write_page(broken(), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:|<script|<link|<img|<image|@import|url\((?!#)|data:", text)
    assert "DejaVu" not in text


def test_every_name_inside_is_unique_and_every_reference_leads_somewhere(tmp_path: Path) -> None:
    shown = page(broken(), tmp_path)
    names = [attributes["id"] for _, attributes in shown.elements if "id" in attributes]
    assert len(names) == len(set(names))
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    references = re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', text)
    assert {first or second for first, second in references} <= set(names)


def test_colours_of_plots_are_those_of_the_page(tmp_path: Path) -> None:
    write_page(broken(), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "stroke: var(--artifact)" in text
    assert not re.search(r"#(0[1-9])\1\1\b", text)


def test_names_and_messages_are_escaped_everywhere(tmp_path: Path) -> None:
    evil = certificate(
        subject={
            "name": HOSTILE,
            "format": HOSTILE,
            "inputs": [HOSTILE],
            "osa": {HOSTILE: HOSTILE},
            "files": {HOSTILE: HOSTILE},
        },
        reference={"model": HOSTILE, "sha256": HOSTILE},
        created=HOSTILE,
        settings={HOSTILE: HOSTILE, "device": HOSTILE, "batches": [HOSTILE]},
        versions={HOSTILE: HOSTILE},
        checks=(Check(HOSTILE, False, HOSTILE),),
        cases=(case(HOSTILE, output(verdict="fail", reason=HOSTILE, name=HOSTILE), tokens=1), case(tokens=9)),
        layers=(layer(HOSTILE, case=HOSTILE, passed=False, reason=HOSTILE),),
        units=(unit(HOSTILE, passed=False, reason=HOSTILE), unit("字")),
        bisection=Bisection(HOSTILE, HOSTILE, HOSTILE, HOSTILE),
        notes=(HOSTILE,),
    )
    shown = page(evil, tmp_path)
    assert shown.count("script") == shown.count("img") == 0
    assert shown.text.count(HOSTILE) > 20
    assert shown.count("style") == 1


def test_interface_failure_has_no_cases_and_no_plots(tmp_path: Path) -> None:
    early = certificate(
        subject={"name": "x", "files": {}},
        checks=(Check("interface", False, "its outputs are a, expected b"),),
        cases=(),
        layers=(),
        units=(),
        histogram={},
    )
    shown = page(early, tmp_path)
    assert shown.count("svg") == 0
    assert "interface: its outputs are a, expected b" in shown.text
    assert "No case was run" in shown.text


def test_without_reference_only_orthogonality_is_drawn(tmp_path: Path) -> None:
    bare = OutputResult("logits", "pass", "finite", 2e-5)
    alone = certificate(
        reference=None, units=(), cases=(case("random", bare),), histogram={"log10_edges": [0.0, 1.0], "counts": [0]}
    )
    shown = page(dataclasses.replace(alone, layers=alone.layers[:3]), tmp_path)
    assert shown.count("svg") == 1
    assert "An output passes when it is finite." in shown.text
    assert not {"artifact from float64", "tolerance", "used"} & set(
        shown.texts[: shown.texts.index("Orthogonality", 20)]
    )
    assert "--against" not in shown.text


def test_nothing_decided_is_a_failure_with_a_reason(tmp_path: Path) -> None:
    lost = output(verdict="undecided", reason="NaN, as it must be", artifact=None, eager=None, parity=None, needed=None)
    shown = page(certificate(cases=(case("large", lost),)), tmp_path)
    assert "✗ FAIL" in shown.text
    assert "no case could be decided" in shown.text
    assert "NaN, as it must be" in shown.text


def test_comparison_names_the_reference(tmp_path: Path) -> None:
    units = tuple(
        UnitResult(name, None, None, 0.0, True, "not fed alone", error, 1e-5, error < 1e-5)
        for name, error in (("embed", 0.0), ("head", 0.02))
    )
    compared = certificate(
        kind="compare",
        reference={"name": "digits-fp32", "format": "onnx", "files": {}},
        cases=(case("random", output(eager=None, artifact=None), batch=1), case(batch=2)),
        layers=(layer("a.0.attention"), layer("a.0.attention", "reference")),
        units=units,
        bisection=Bisection(None, "head", "random batch=1"),
    )
    shown = page(compared, tmp_path)
    assert "Compared with the artifact digits-fp32" in shown.text
    assert "osa compare digits-onnx digits-fp32 --seed 7 --bisect" in shown.text
    assert "‖AᵀA − I‖, reference" in shown.texts
    assert "eager" not in shown.text


def test_command_repeats_all_settings(tmp_path: Path) -> None:
    settings = dict(
        seed=3, batches=[1, 8], lengths=[16, 64], rtol=1e-4, atol=1e-6, given_inputs=True, given_outputs=True
    )
    settings |= dict(device="cuda:1", threads=2)
    subject = {"name": "my model", "files": {}, "placement": {"device": "cpu"}}
    shown = page(certificate(subject=subject, settings=settings), tmp_path)
    assert (
        "osa verify 'my model' --against CHECKPOINT --batch 1,8 --tokens 16,64 --seed 3 --rtol 0.0001 --atol 1e-06 "
        "--threads 2 --load-inputs INPUTS.npz --load-outputs OUTPUTS.npz --device cuda:1 --allow-fallback"
    ) in shown.text
    assert "given by --rtol" in shown.text


@pytest.mark.parametrize("tokens", [(1, 7, 64, 1024), (16, 17)], ids=["wide", "narrow"])
def test_error_is_drawn_against_tokens_where_there_are_any(tokens: tuple[int, ...], tmp_path: Path) -> None:
    cases = tuple(case(batch=2, tokens=size) for size in tokens)
    shown = page(certificate(cases=(*cases, case("padded", batch=2, tokens=tokens[0]))), tmp_path)
    assert "Relative error against tokens, logarithmic" in [a.get("aria-label") for _, a in shown.elements]
    assert "padded" in shown.texts


NAN, INF = math.nan, math.inf
NULLS = metrics(1.0, ulp_p50=None, cosine=None, top1=None)
AWKWARD: dict[str, dict[str, Any]] = {
    "one layer, one head": dict(layers=(layer("only", heads=1),)),
    "32 layers, 12 heads": dict(layers=tuple(layer(f"b.{i}.a", heads=12) for i in range(32))),
    "no defects": dict(layers=(layer("a", defect=None), layer("b", heads=0, passed=False))),
    "defects not finite": dict(layers=(layer("a", defect=NAN), layer("b", defect=INF, passed=False))),
    "zero and huge": dict(layers=(layer("a", defect=0.0), layer("b", defect=0.5, passed=False))),
    "uneven parties": dict(layers=(layer("a"), layer("b", "eager"), layer("c", "eager", heads=0))),
    "layer without tolerance": dict(layers=(layer("a", tolerance=INF, bound=NAN), layer("b"))),
    "probed": dict(layers=(layer("a", directions=64),)),
    "unit without number": dict(units=(unit("a", None, eager=None, passed=False), unit("b", 0.0))),
    "no unit has a number": dict(units=(unit("a", None, eager=None, passed=False),)),
    "units not finite": dict(units=(unit("a", NAN, passed=False), unit("b", INF, tolerance=INF))),
    "200 units with long names": dict(units=tuple(unit(f"b.{i}.{'x' * 60}") for i in range(200))),
    "outputs not finite": dict(cases=(case("random", output(NAN, INF)), case("random", output(INF, NAN), batch=9))),
    "case without tolerance": dict(cases=(case("random", output(tolerance=INF), batch=3), case())),
    "no tolerance at all": dict(cases=(case("random", output(tolerance=INF)),)),
    "exact": dict(cases=(case("random", output(0.0, 0.0)), case(batch=9))),
    "no dynamic axis": dict(cases=(CaseResult("given", {}, None, (output(),)),)),
    "case that did not run": dict(cases=(case("random", OutputResult("", "fail", "it does not run", 1e-5)), case())),
    "nulls": dict(cases=(case("random", output(needed=None, artifact=NULLS)),)),
    "two outputs": dict(cases=(case("random", output(), output(name="features")),)),
    "very long message": dict(checks=(Check("files", False, "very long " * 5000),)),
    "many failures": dict(cases=tuple(case("k", output(1.0, verdict="fail"), batch=i) for i in range(1, 40))),
    "many kinds at one size": dict(cases=(case(batch=9), *(case(f"kind {i}") for i in range(60)))),
    "empty histogram": dict(histogram={}),
}


@pytest.mark.parametrize("changes", AWKWARD.values(), ids=AWKWARD.keys())
def test_awkward_certificates_give_a_page(changes: dict[str, Any], tmp_path: Path) -> None:
    shown = page(certificate(**changes), tmp_path)
    word = {"pass": "✓ PASS", "consistent": "≈ CONSISTENT", "fail": "✗ FAIL"}[certificate(**changes).verdict]
    assert word in shown.text
    assert not re.search(r"\b(nan|inf|None)\b", shown.text)


def test_certificate_read_back_from_its_file_gives_the_same_page(tmp_path: Path) -> None:
    broken().write(tmp_path / "certificate.json")
    write_page(broken(), tmp_path / "first.html")
    write_page(read_certificate(tmp_path / "certificate.json"), tmp_path / "second.html")
    assert (tmp_path / "first.html").read_bytes() == (tmp_path / "second.html").read_bytes()


def test_failing_head_is_outlined_and_its_layer_named_in_red(tmp_path: Path) -> None:
    bad = layer("stack.blocks.1.attention", defect=0.5, passed=False, reason="head 0 is not orthogonal")
    shown = page(certificate(layers=(layer("stack.blocks.0.attention"), bad)), tmp_path)
    styles = [attributes.get("style") or "" for name, attributes in shown.elements if name == "path"]
    assert sum("stroke: var(--fail)" in style for style in styles) == 4  # its heads
    assert "stack.blocks.1.attention (artifact): head 0 is not orthogonal" in shown.text


def test_case_with_a_failing_layer_is_the_open_one(tmp_path: Path) -> None:
    bad = layer("a", case="parallel batch=2", passed=False, reason="head 0 is not orthogonal")
    shown = page(certificate(layers=(layer("a"), layer("a", case="large batch=2"), bad)), tmp_path)
    captions = [text for text in shown.texts if text.startswith("Case ") and ". " in text]
    assert [text.partition(". ")[0] for text in captions] == [
        f"Case {k} batch=2" for k in ("parallel", "random", "large")
    ]
    assert shown.texts.count("Case parallel batch=2") == 0  # no summary to open


def test_missing_matplotlib_names_the_extra_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"osa-runtime\[train\]"):
        write_page(certificate(), tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_path_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "page.html").mkdir()
    with pytest.raises(StorageError, match="Cannot write"):
        write_page(certificate(), tmp_path / "page.html")
