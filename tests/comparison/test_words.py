"""The sentences of a comparison say what its table says, also where methods miss the target or were not run."""

from __future__ import annotations

import math

import polars as pl

from latecomer.comparison import planned
from latecomer.comparison.results import _RUN, Results
from latecomer.comparison.words import conclusion

INF = math.inf
METHODS = ("async-sgd", "sync-minibatch", "momentum", "ordered-momentum", "rate-free")
TIMES = {
    "slow-samples": dict(zip(METHODS, (20.0, 40.0, 10.0, INF, 10.0), strict=True)),
    "independent": dict(zip(METHODS, (30.0, 20.0, 20.0, 10.0, INF), strict=True)),
}
SLOW = {"slow-samples": 3.0, "independent": 1.5}


def results(methods: tuple[str, ...] = METHODS, delays: tuple[str, ...] = tuple(TIMES)) -> Results:
    plan = planned("quick", methods=list(methods), problems=["quadratic"], delays=list(delays), seeds=[7, 8, 9])
    rows = [
        {
            "problem": "quadratic", "delays": each, "method": method, "seed": seed, "time": TIMES[each][method],
            "updates": TIMES[each][method], "final": 0.1, "loss_fast": 0.1,
            "options": "" if method == "rate-free" else "lr=0.1", "rate": "largest" if method == "momentum" else None,
            "loss_slow": SLOW[each] * (2.0 if method == "ordered-momentum" and each == "slow-samples" else 1.0),
            "wasted": 0.0, "idle": 0.0, "delay": 1.0, "diverged": False,
        }
        for each in delays for method in methods for seed in (7, 8, 9)
    ]  # fmt: skip
    return Results(plan, dict.fromkeys(plan.cells, 0.1), pl.DataFrame(rows, schema=_RUN), {}, {})


def test_every_sentence_follows_from_the_table() -> None:
    text = conclusion(results())
    assert text[0] == (
        "**All together**: 5 methods on 6 instances (problem, delay model, seed). Most often within twice the fastest "
        "time: `momentum` 100 %, `async-sgd` 50 % and `sync-minibatch` 50 % of the instances that all methods were run "
        "on."
    )
    assert (
        text[1] == "**quadratic**, fastest: `momentum`, `rate-free` (slow-samples); `ordered-momentum` (independent)."
    )
    assert text[2] == (
        "**Waiting**: with one rule, SGD, not waiting (`async-sgd`) is faster than `sync-minibatch` in 1 and slower in "
        "1 of 2 cases (1.00 of its time, 0.50 to 1.50, where both reach the target). It does not pay on quadratic "
        "under independent."
    )
    assert "largest for `ordered-momentum` 4.00, " in text[3]
    assert text[4] == (  # a miss is slower, and has no ratio
        "**The paper's ordering**: `ordered-momentum` is faster than `momentum` in 1 and slower in 1 of 2 cases (0.50 "
        "of its time where both reach the target)."
    )
    assert text[5] == (
        "**Ours**: `rate-free` is faster than `momentum` in 0 and slower in 1 of 2 cases (1.00 of its time where "
        "both reach the target)."
    )
    assert "at an end of its range in 2 of 8 cases" in text[6]  # rate-free has no learning rate
    assert "run on 3, times are known to 1/12 of a run" in text[6]


def test_what_was_not_compared_is_left_out() -> None:
    text = conclusion(results(("momentum", "rate-free"), ("slow-samples",)))
    assert [sentence.split("**")[1] for sentence in text] == ["All together", "quadratic", "Ours", "Doubts"]
    text = conclusion(results(("ordered-momentum",), ("slow-samples",)))
    assert text[1] == "**quadratic**, fastest: none reaches the target (slow-samples)."
    empty = results()
    assert conclusion(Results(empty.comparison, {}, pl.DataFrame(schema=_RUN), {}, {})) == []
