"""Rotating blocks, medians, ratios round by round, and what makes a figure doubtful."""

from __future__ import annotations

import pytest
from speed.contest import LEAST_ROUNDS, Contest, Pace, Variant, all_doubts, compete, fastest
from speed.report import Report, time_cell

MILLISECOND = 1_000_000


def contest(busy: float | None = 0.0, threads: int = 1, **milliseconds: list[float]) -> Contest:
    blocks = {name: [[round(value * MILLISECOND)] for value in values] for name, values in milliseconds.items()}
    return Contest(blocks, busy, threads)


def test_the_ratio_is_the_median_of_the_rounds() -> None:
    # the second round was slow for both: medians of each alone would give 3 / 1
    found = contest(ours=[1.0, 10.0, 1.0, 1.0], theirs=[2.0, 20.0, 6.0, 3.0])
    assert found.ratio("ours", "theirs").median == pytest.approx(2.5)
    assert found.ratio("theirs", "ours").median == pytest.approx(1 / 2.5, rel=0.05)
    assert found.milliseconds("ours").median == 1.0


def test_steady_rounds_of_a_quiet_machine_are_not_doubted() -> None:
    assert contest(ours=[1.0] * LEAST_ROUNDS).doubt("ours") is None


def test_a_wide_spread_is_doubted() -> None:
    wide = [1.0, 1.5] * LEAST_ROUNDS
    found = contest(ours=wide, theirs=[1.0] * len(wide))
    assert "spread by more than 20%" in str(found.doubt("ours"))
    assert found.doubt("theirs") is None
    assert time_cell(found, "ours").endswith("!")
    assert not time_cell(found, "theirs").endswith("!")


def test_few_rounds_are_doubted() -> None:
    assert "14 rounds are too few" in str(contest(ours=[1.0] * (LEAST_ROUNDS - 1)).doubt("ours"))


def test_other_processes_are_a_doubt_though_the_rounds_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("osa_runtime.benchmarking.machine.usable_cores", lambda: 2)
    steady = [1.0] * LEAST_ROUNDS
    assert "other processes used 1.0 of 2 cores" in str(contest(busy=1.0, threads=2, ours=steady).doubt("ours"))
    assert contest(busy=1.0, threads=1, ours=steady).doubt("ours") is None  # the second core was idle
    assert contest(busy=None, threads=2, ours=steady).doubt("ours") is None


def test_every_reason_is_told_once() -> None:
    few, steady, wide = [1.0] * 3, [1.0] * LEAST_ROUNDS, [1.0, 1.5] * LEAST_ROUNDS
    everywhere = all_doubts({"a": contest(x=few, y=few), "b": contest(x=few)})
    assert len(everywhere) == 1
    assert everywhere[0].startswith("everywhere: 3 rounds")
    (some,) = all_doubts({"a": contest(x=wide, y=steady[:1] * len(wide)), "b": contest(x=steady)})
    assert some.startswith("a (x): ")
    assert all_doubts({"a": contest(x=steady)}) == []


def test_a_doubt_is_at_the_top_of_the_report() -> None:
    facts = {"machine": {"cpu": "P", "cores": 2, "versions": {"torch": "2"}}, "threads": 1, "rounds": 3}
    for rounds, trusted in ((3, False), (LEAST_ROUNDS, True)):
        report = Report("name", "Title", facts, all_doubts({"a": contest(x=[1.0] * rounds)}), {"rows": []}, ["text"])
        assert ("Do not trust" not in report.as_markdown()) is trusted
        assert report.as_json()["trustworthy"] is trusted


def test_contenders_take_turns_and_another_begins_each_round() -> None:
    seen: list[str] = []
    pace = Pace(rounds=3, block_seconds=0, pause=0)
    found = compete({name: lambda name=name: seen.append(name) for name in "abc"}, pace, 1)
    assert {name: len(blocks) for name, blocks in found.blocks.items()} == {"a": 3, "b": 3, "c": 3}
    blocks = [name for name, before in zip(seen, [None, *seen[:-1]], strict=True) if name != before]
    # each is called alone before the first round, to see how slow it is; then the rounds
    assert "".join(blocks) == "abc" + "abc" + "bca" + "cab"


def test_a_slow_contender_is_not_warmed_up_and_called_once_per_round() -> None:
    slow, long, quick = (Pace().schedule(seconds) for seconds in (2.0, 0.2, 1e-4))
    assert (slow.warm_up, slow.iterations, slow.seconds, slow.blocks) == (0, LEAST_ROUNDS, 0, LEAST_ROUNDS)
    assert (long.warm_up, long.iterations, long.seconds, long.blocks) == (1, LEAST_ROUNDS, 0, LEAST_ROUNDS)
    assert (quick.warm_up, quick.iterations, quick.blocks) == (3, 3 * LEAST_ROUNDS, LEAST_ROUNDS)


def test_the_fastest_way_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up = contest(slow=[3.0, 3.0], quick=[1.0, 1.1])
    monkeypatch.setattr("speed.contest.compete", lambda *_: made_up)
    assert fastest({"slow": Variant(int), "quick": Variant(int)}, 1) == "quick"
    assert fastest({"only": Variant(int)}, 1) == "only"


def test_the_json_has_every_round() -> None:
    found = contest(busy=0.2, ours=[1.0, 2.0, 4.0]).as_dict()
    assert found["cores_busy_with_others"] == 0.2
    ours = found["contenders"]["ours"]
    assert ours["rounds_ms"] == [1.0, 2.0, 4.0]
    assert (ours["median_ms"], ours["calls"]) == (2.0, 3)
    assert "too few" in ours["doubt"]
