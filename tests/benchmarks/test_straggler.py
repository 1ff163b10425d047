"""The comparison with waiting: it can be interrupted, and counts what it says."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.straggler import METHODS, SYNCHRONOUS, Straggler, _ratio, _reached
from latecomer.problems import Text


def comparison(keep: Path | None = None, **options: Any) -> Straggler:
    small = Text(width=8, layers=1, heads=2, lengths=(8, 32), shares=(0.8, 0.2), evaluated=64, limit=200_000)
    given: dict[str, Any] = {"steps": 24, "lrs": (0.1, 0.01), "seeds": 2, "engine": "inline", "evaluations": 3}
    return Straggler(small, virtual_workers=3, keep=keep, **{**given, **options})


def test_what_was_done_is_not_done_again_and_a_torn_line_is(tmp_path: Path) -> None:
    keep = tmp_path / "runs"
    first = dict(itertools.islice(comparison(keep).runs(), 9))
    keep.write_text(keep.read_text()[:-20])  # killed while it wrote the ninth
    again = comparison(keep)
    second = dict(again.runs())
    assert len(second) == again.total == 32
    same = [word for word in first if second[word] == first[word]]
    assert same == list(first)[:8]  # times included: nobody could measure the same ones twice
    other = comparison(keep, steps=30)
    next(other.runs())
    assert len(other._rows) == 1  # other questions have other answers


def test_the_table_follows_from_the_runs() -> None:
    """Times made up: synchronous runs reach their end after 8 seconds, the others the same loss after 2 or never."""
    made = comparison()
    for clock, (name, lr, seed) in itertools.product(
        ("real", "virtual"), itertools.product(METHODS, made.lrs, (0, 1, 2))
    ):
        late = name != SYNCHRONOUS
        losses = [(4.0, 3.0), (8.0, 1.0)] if not late else [(2.0, 1.0 if seed == 1 else 1.5), (16.0, 1.4)]
        history = [{"time": at, "loss": loss + lr, "loss_8": loss, "loss_32": 2 * loss} for at, loss in losses]
        made._rows[f"{clock}/{name}/{lr!r}/{seed}"] = {"history": history, "delay": 1.0}
    table = made.table()
    assert set(table["lr"]) == {0.01}  # the lower loss
    for row in table.iter_rows(named=True):
        waits = row["method"] == SYNCHRONOUS
        assert row["reached"] == (2 if waits else 1)
        assert row["faster"] == pytest.approx(1.0 if waits else 4.0)
        assert row["longest"] == pytest.approx(2.0 if waits else 2.8)


def test_ratios_have_intervals_on_the_logarithm() -> None:
    found = _ratio([2.0, 0.5])
    assert found.value == pytest.approx(1.0)
    assert found.low == pytest.approx(1 / found.high)
    assert math.isnan(_ratio([]).value)
    assert _reached({"history": [{"time": 1.0, "loss": math.nan}]}, 1.0) == math.inf


@pytest.mark.parametrize("wrong", [{"lrs": ()}, {"steps": 0}, {"seeds": 0}, {"lrs": (-1.0,)}, {"evaluations": 0}])
def test_wrong_settings_are_told(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"Invalid|expected"):
        comparison(**wrong)
