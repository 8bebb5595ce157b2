"""A certificate survives its file; whatever else was done to the file is an ArtifactError."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from osa_runtime.errors import ArtifactError
from osa_runtime.parity.certificate import (
    Bisection,
    CaseResult,
    Certificate,
    Check,
    HeadResult,
    LayerResult,
    OutputResult,
    UnitResult,
    _digest,
    read_certificate,
)

METRICS = {"max_abs": 1e-6, "max_rel": 2e-6, "rms": 1e-7, "cosine": 1.0, "ulp_p50": 1.0, "top1": None}


def passing(**changes: Any) -> Certificate:
    output = OutputResult("logits", "pass", "fine", 2e-5, 1e-6, METRICS, METRICS, METRICS)
    head = HeadResult(1e-7, 0.9999999, 1.0000001, 1.5, 2e-7)
    plain: dict[str, Any] = dict(
        kind="verify",
        created="2026-01-02T03:04:05+00:00",
        subject={"name": "modèle 模型", "files": {"model.onnx": "ab" * 32}},
        reference={"model": "SkiplessViT"},
        settings={"seed": 7, "rtol": None},
        versions={"numpy": "2"},
        checks=(Check("files", True, "all there"),),
        cases=(CaseResult("random", {"batch": 2}, 1.5, (output,)),),
        layers=(LayerResult("a", "artifact", "random batch=2", (head, head), 2, 1.9, None, 2e-6, True, "orthogonal"),),
        units=(UnitResult("embed", 1e-7, 2e-7, 6e-6, True, "fine"),),
        bisection=Bisection("embed", None, "random batch=2", None),
        histogram={"log10_edges": [-8.0, -7.5], "counts": [3]},
        notes=("a note",),
    )
    return Certificate(**plain | changes)


def stored(tmp_path: Path, change: Callable[[dict[str, Any]], None], *, sealed: bool) -> Path:
    """The file of a certificate after a change; ``sealed`` gives it the hash of its new content."""
    content = json.loads(passing().to_json())
    change(content)
    if sealed:
        content["sha256"] = _digest({name: x for name, x in content.items() if name not in ("sha256", "signature")})
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(content))
    return path


def test_it_survives_its_file(tmp_path: Path) -> None:
    for certificate in (passing(), passing(kind="compare", bisection=None, layers=(), units=(), cases=())):
        certificate.write(tmp_path / "c.json")
        assert read_certificate(tmp_path / "c.json") == certificate


def test_reformatting_the_file_does_no_harm(tmp_path: Path) -> None:
    assert read_certificate(stored(tmp_path, lambda c: None, sealed=False)) == passing()


def test_numbers_that_json_lacks_are_read_as_none(tmp_path: Path) -> None:
    head = HeadResult(float("nan"), 1.0, float("inf"), 1.0, 1e-7)
    layer = dataclasses.replace(passing().layers[0], heads=(head,), bound=float("inf"), passed=False)
    passing(layers=(layer,)).write(tmp_path / "c.json")
    assert "NaN" not in (tmp_path / "c.json").read_text()
    found = read_certificate(tmp_path / "c.json").layers[0]
    assert (found.heads[0].defect, found.heads[0].ratio_high, found.bound) == (None, None, None)


def test_a_name_that_is_no_text_survives(tmp_path: Path) -> None:
    """A folder may have bytes in its name that are not UTF-8."""
    subject = {"name": "mod\udcffel", "files": {}}
    passing(subject=subject).write(tmp_path / "c.json")
    assert read_certificate(tmp_path / "c.json").subject == subject


def failing_output(content: dict[str, Any]) -> None:
    content["cases"][0]["outputs"][0]["verdict"] = "fail"


def failing_check(content: dict[str, Any]) -> None:
    content["checks"][0]["passed"] = False


@pytest.mark.parametrize("sealed", [True, False], ids=["with a new hash", "as it is"])
@pytest.mark.parametrize(
    "change",
    [
        failing_output,
        failing_check,
        lambda c: c.update(verdict="fail"),
        lambda c: c.pop("verdict"),
        lambda c: c.update(verdict="consistent"),
        lambda c: c.update(basis="structure and numbers"),
        lambda c: c.update(reference=None),
        lambda c: c["checks"].append({"name": "structure", "passed": True, "detail": ""}),
    ],
    ids=[
        "failed output",
        "failed check",
        "verdict",
        "no verdict",
        "consistent",
        "basis",
        "no reference",
        "structure",
    ],
)
def test_a_verdict_that_is_not_that_of_the_results_is_refused(
    change: Callable[[dict[str, Any]], None], sealed: bool, tmp_path: Path
) -> None:
    with pytest.raises(ArtifactError, match="is not a certificate"):
        read_certificate(stored(tmp_path, change, sealed=sealed))


def places(content: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in the JSON where a field or an item is, down to free-form objects."""
    if path and path[-1] in ("subject", "settings", "artifact", "eager", "parity", "reference"):
        return [path]
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return ([path] if path else []) + [place for key, item in items for place in places(item, (*path, key))]


PLACES = places(json.loads(passing().to_json()))
FIELDS = [place for place in PLACES if place[0] != "sha256" and isinstance(place[-1], str) and place[-1] != "batch"]


def holder(content: Any, place: tuple[Any, ...]) -> Any:
    for key in place[:-1]:
        content = content[key]
    return content


@pytest.mark.parametrize("place", [p for p in FIELDS if p[0] not in ("versions", "histogram") or len(p) == 1], ids=str)
def test_a_missing_field_is_refused(place: tuple[Any, ...], tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="is not a certificate"):
        read_certificate(stored(tmp_path, lambda c: holder(c, place).pop(place[-1]), sealed=True))


@pytest.mark.parametrize("place", FIELDS, ids=str)
def test_a_field_of_another_type_is_refused(place: tuple[Any, ...], tmp_path: Path) -> None:
    """``[{}]`` is not a value of any field; a string in place of false must not count as true."""
    for wrong in ([{}], "false", 1e400):
        before = holder(json.loads(passing().to_json()), place)[place[-1]]
        if isinstance(before, str) and isinstance(wrong, str):
            continue
        nullable = place[-1] in ("subject", "settings", "artifact", "eager", "parity", "reference")
        if nullable and wrong == 1e400:
            continue
        path = stored(tmp_path, lambda c: None, sealed=False)
        content = json.loads(path.read_text())
        holder(content, place)[place[-1]] = wrong
        path.write_text(json.dumps(content))
        with pytest.raises(ArtifactError, match="is not a certificate"):
            read_certificate(path)


def test_a_retyped_field_is_refused_even_with_a_new_hash(tmp_path: Path) -> None:
    def retype(content: dict[str, Any]) -> None:
        content["checks"][0]["passed"] = "false"

    with pytest.raises(ArtifactError, match=r"checks\[0\].passed is 'false', expected bool"):
        read_certificate(stored(tmp_path, retype, sealed=True))


def test_an_unknown_field_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="unknown fields"):
        read_certificate(stored(tmp_path, lambda c: c["units"][0].update(more=1), sealed=True))


def test_no_flipped_bit_changes_what_is_read(tmp_path: Path) -> None:
    good, path = passing(), tmp_path / "c.json"
    text = good.to_json().encode()
    generator = random.Random(0)
    refused = 0
    for _ in range(400):
        position, bit = generator.randrange(len(text)), generator.randrange(8)
        path.write_bytes(text[:position] + bytes([text[position] ^ 1 << bit]) + text[position + 1 :])
        try:
            assert read_certificate(path) == good  # 1e-07 and 1E-07 are the same number
        except ArtifactError:
            refused += 1
    assert refused > 390


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    text, path = passing().to_json().encode(), tmp_path / "c.json"
    for end in range(0, len(text) - 2, 37):
        path.write_bytes(text[:end])
        with pytest.raises(ArtifactError, match="is not a certificate"):
            read_certificate(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "1",
        '"text"',
        "{}",
        '{"version": 1}',
        '{"version": true}',
        '{"version": 2}',
        '{"version": 3}',
        "[" * 100_000,
    ],
    ids=["empty", "null", "list", "number", "text", "object", "version only", "true", "version 2", "version 3", "deep"],
)
def test_what_is_no_certificate_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(ArtifactError, match="is not a certificate"):
        read_certificate(path)


def test_a_missing_file_a_folder_and_bytes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="does not exist"):
        read_certificate(tmp_path / "none.json")
    with pytest.raises(ArtifactError, match="is not a certificate"):
        read_certificate(tmp_path)
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ArtifactError, match="is not a certificate"):
        read_certificate(tmp_path / "bytes.json")


def test_nothing_decided_is_no_pass() -> None:
    undecided = dataclasses.replace(passing().cases[0].outputs[0], verdict="undecided")
    case = dataclasses.replace(passing().cases[0], outputs=(undecided,))
    assert case.verdict == "undecided"
    assert not passing(cases=(case,)).passed
    assert passing(cases=(case, passing().cases[0])).passed


def test_without_a_reference_nothing_passes() -> None:
    alone = passing(kind="consistency", reference=None)
    assert (alone.basis, alone.verdict, alone.passed, alone.failed) == ("no reference", "consistent", False, False)
    assert passing(reference=None, checks=(Check("files", False, "changed"),)).verdict == "fail"
    given = passing(reference=None, settings={"given_outputs": True})
    assert (given.basis, given.verdict) == ("numbers only", "pass")


@pytest.mark.parametrize("changes", [{"reference": None}, {"kind": "consistency"}], ids=str)
def test_a_kind_that_is_not_that_of_the_reference_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    passing(**changes).write(tmp_path / "c.json")
    with pytest.raises(ArtifactError, match="its kind is not that of its reference"):
        read_certificate(tmp_path / "c.json")


@pytest.mark.parametrize("passed", [True, False])
def test_a_check_of_the_structure_is_what_the_basis_rests_on(passed: bool) -> None:
    assert passing().basis == "numbers only"
    compared = passing(checks=(Check("structure", passed, "as a fresh export"),))
    assert compared.basis == "structure and numbers"
    assert compared.passed is passed


def test_failures_name_every_part() -> None:
    failed = passing(
        checks=(Check("files", False, "changed"),),
        units=(dataclasses.replace(passing().units[0], passed=False, reason="wrong"),),
        layers=(dataclasses.replace(passing().layers[0], passed=False, reason="not orthogonal"),),
    )
    assert failed.failures() == ["files: changed", "embed: wrong", "a (artifact): not orthogonal"]
    assert not failed.passed
