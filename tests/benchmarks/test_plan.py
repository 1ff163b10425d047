"""benchmarks/plan.py: the reason of a large gap is what was measured, and rounds have the jobs that they should."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.two_processes import pairs

FOLDER = Path(__file__).parents[2] / "benchmarks"


def test_rounds_have_neighbours_or_the_next_two_jobs_of_one_group() -> None:
    groups = [0, 1, 0, 0, 1, 0, 1]
    assert pairs(groups, buckets=False) == [(0, 1), (2, 3), (4, 5)]
    assert pairs(groups, buckets=True) == [(0, 2), (1, 4), (3, 5)]


def test_a_gap_is_explained_by_jobs_timed_two_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    from benchmarks.plan import explained

    slower = {"alone": 1.0, "two at a time": 1.5, "from the run": 1.8}
    gaps = {"alone": -0.36, "two at a time": -0.04, "from the run": -0.01}
    reason = "two at a time take 1.50 times as long as one alone, measured without a server"
    assert explained({"gaps": gaps, "slower": slower}) == reason
    assert explained({"gaps": gaps | {"alone": 0.2}, "slower": slower}) == ""
    left = explained({"gaps": gaps | {"two at a time": -0.3}, "slower": slower})
    assert left == f"{reason}, which leaves -30%; in the run itself 1.80 times, which leaves -1%"
    reduce = {"reduce": 0.0012, "round": 0.01}
    expected = ", and an all-reduce takes 1.2 ms of a round's 10, which leaves -1%"
    row = {"gaps": gaps | {"two at a time": -0.3}, "slower": slower, **reduce}
    assert explained(row) == left.replace(", which leaves -1%", expected)
    of_ratio = {"gaps": gaps, "measured": 1.28, "reduced": 1.24, **reduce}
    assert explained(of_ratio) == (
        "an all-reduce takes 1.2 ms of a round's 10, which is not predicted: with it +3%, and -1% with the durations "
        "of the runs"
    )
