"""The judgement of the matrix of runtimes: what counts as right, and that nothing is left out."""

from __future__ import annotations

from pathlib import Path

import matrix
import numpy as np
import pytest
from cases import Case, compared

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("found", "expected", "difference", "lost"),
    [
        ([[1.0, 2.0]], [[1.0, 2.0]], 0.0, False),
        ([[1.0, 2.2]], [[1.0, 2.0]], 0.1, False),
        ([[NAN, 2.0]], [[1.0, 2.0]], 0.0, True),
        ([[NAN, 3.0]], [[1.0, 2.0]], 0.5, True),
        ([[NAN, NAN]], [[NAN, NAN]], 0.0, False),
        ([[0.0, NAN]], [[NAN, NAN]], INF, False),
        ([[INF, 2.0]], [[1.0, 2.0]], INF, False),
    ],
)
def test_answers_are_compared(found: list[float], expected: list[float], difference: float, lost: bool) -> None:
    measured, nan = compared(np.array(found), np.array(expected))
    assert measured.tolist() == [pytest.approx(difference)]
    assert nan.tolist() == [lost]


def judged(row: matrix.Row, tmp_path: Path, answers: dict[int, list[float]], *norms: float) -> matrix.Result:
    measured = np.array(norms or [1.0])
    expected, tolerances = np.tile([1.0, 2.0], (len(measured), 1)), 1e-3 * measured
    cases = [Case("m", str(i), {}, expected, measured, 0 * measured, tolerances) for i in range(2)]
    for index, values in answers.items():
        np.array(values, np.float32).tofile(tmp_path / f"{cases[index].file}.answer")
    result = matrix.Result(row)
    matrix.judge(result, cases, tmp_path, [["version", "1"], *(["ok", str(i), "0.1"] for i in answers)])
    return result


def row_for(target: str) -> matrix.Row:
    return next(row for row in matrix.ROWS if row.target == target)


def test_what_was_not_answered_fails(tmp_path: Path) -> None:
    result = judged(row_for("ort"), tmp_path, {0: [1.0, 2.0]})
    assert (result.right, result.faults) == (1, ["m, 1: the process ended"])
    assert "**fails** 1 of 2" in matrix.line(result)


def test_nan_is_right_only_where_the_export_says_so(tmp_path: Path) -> None:
    answers = {0: [1.0, 2.0], 1: [NAN, NAN]}
    assert judged(row_for("tract"), tmp_path, answers, 20.0).nan == 1
    assert judged(row_for("tract"), tmp_path, answers, 1.0).faults == ["m, 1: NaN, at ‖S‖ of 1"]
    assert judged(row_for("ort"), tmp_path, answers, 20.0).faults != []


def test_a_difference_fails(tmp_path: Path) -> None:
    result = judged(row_for("ort"), tmp_path, {0: [1.0, 2.0], 1: [1.0, 2.1]})
    assert result.faults == ["m, 1: off by 5.0e-02, where 1.0e-03 is allowed"]


def test_entries_of_a_batch_are_judged_one_by_one(tmp_path: Path) -> None:
    """What a large entry may lose, a small one next to it may not."""
    right, near, lost = [1.0, 2.0], [1.0, 2.01], [NAN, NAN]
    row = row_for("tract")
    assert judged(row, tmp_path, {0: right + near, 1: right + lost}, 1.0, 20.0).faults == []
    assert len(judged(row, tmp_path, {0: near + right, 1: lost + right}, 1.0, 20.0).faults) == 2
