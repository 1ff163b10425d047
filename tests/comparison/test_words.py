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
            "wasted": 0.0, "idle": 0.0, "delay": 1.0, "diverged": False, "trained": method != "sync-minibatch",
            "easier": TIMES[each][method] < INF,
        }
        for each in delays for method in methods for seed in (7, 8, 9)
    ]  # fmt: skip
    return Results(plan, dict.fromkeys(plan.cells, 0.1), pl.DataFrame(rows, schema=_RUN), {}, {})


def test_every_sentence_follows_from_the_table() -> None:
    text = conclusion(results())
    assert text[0] == (
        "**All together**: 5 methods in 2 settings (a problem under a delay model). Most often within twice the "
        "fastest method's time, in per cent of the runs where all were run: `momentum` 100 %, `async-sgd` 50 % and "
        "`sync-minibatch` 50 %, as 2 others."
    )
    assert text[1] == (
        "**quadratic**, fastest by the median over 3 seeds: `momentum`, `rate-free` (slow-samples); "
        "`ordered-momentum` (independent). Each of 5 methods reaches the target at least once."
    )
    assert text[2] == (  # of four others one ties, one is faster, and two are slower: that is not most
        "**Where asynchrony does not pay**: waiting, by SGD without momentum (`sync-minibatch`), is faster than most "
        "other methods in no setting, and faster than all in no setting. At best it is faster than 2 of 4 others, in "
        "quadratic (independent). Like is compared with like only where the rule is the same: without waiting it "
        "(`async-sgd`) is faster than `sync-minibatch` in 1, as fast in 0 and slower in 1 of 2 settings (2 where both "
        "reach the target: median 1.00 times as long, from 0.50 to 1.50), slower in quadratic (independent). In "
        "every setting jobs differ in duration; with equal durations waiting costs nothing."
    )
    assert text[3] == (
        "**Slow samples**: methods that reach a target on most seeds when durations are independent of the data, and "
        "miss the same target when they follow the data: 1 on quadratic (`ordered-momentum`). The reverse, which only "
        "tuning and chance can explain: 1 on quadratic (`rate-free`). The last loss of the slow group if delays "
        "follow the data is so many times that of the control: `ordered-momentum` 4.00 on quadratic; `momentum` 2.00 "
        "on quadratic; `rate-free` 2.00 on quadratic (table Slow samples)."
    )
    assert text[4].endswith(  # a miss is slower, and has no ratio
        "`ordered-momentum` is faster than `momentum` in 1, as fast in 0 and slower in 1 of 2 settings (1 where both "
        "reach the target: median 0.50 times as long)."
    )
    assert text[5] == (  # a tie is neither
        "**Rules of this library**, settings in which each is faster/as fast/slower than `momentum`: `rate-free` 0/1/1 "
        "of 2 (1 where both reach the target: median 1.00 times as long). They were designed on problems like these, "
        "with other seeds, and the others were not."
    )
    assert "of 8 chosen learning rates 2 are at an end of their range" in text[6]  # rate-free has no learning rate
    # 600 arrivals, 12 evaluations: 50 updates between them, and the fastest methods need 10.
    assert (
        "there are 3 seeds to judge on; times are those of evaluations, 12 per run, which is 500 % to 500 % of"
        in text[6]
    )


def test_ties_and_settings_that_neither_reaches_are_no_wins() -> None:
    found = results()
    late = found.runs.with_columns(pl.when(pl.col("delays") == "independent").then(INF).otherwise(20.0).alias("time"))
    text = conclusion(Results(found.comparison, found.targets, late, {}, {}))
    assert (
        "without waiting it (`async-sgd`) is faster than `sync-minibatch` in 0, as fast in 1 and slower in 0 of 2 "
        "settings (neither reaches the target in 1; 1 where both reach the target: median 1.00 times as long). In every"
    ) in text[2]
    waits = pl.col("method") == "sync-minibatch"
    first = found.runs.with_columns(pl.when(waits).then(pl.col("time") / 2.5).otherwise("time").alias("time"))
    text = conclusion(Results(found.comparison, found.targets, first, {}, {}))
    assert "most other methods in quadratic (independent), and faster than all in quadratic (independent). " in text[2]
    reached = found.runs.with_columns(pl.lit(value=True).alias("easier"))
    text = conclusion(Results(found.comparison, found.targets, reached, {}, {}))
    assert "when they follow the data: none. The reverse, which only tuning and chance can explain: none." in text[3]
    never = late.with_columns(pl.lit(INF).alias("time"))
    text = conclusion(Results(found.comparison, found.targets, never, {}, {}))
    assert text[0].endswith("No method reaches a target that all methods were run on.")
    assert text[1].endswith(
        "none reaches the target under every delay model. 5 of 5 methods reach the target on no seed under any delay "
        "model; 1 of them did not even get half of the way there in any run."
    )


def test_what_was_not_compared_is_left_out() -> None:
    text = conclusion(results(("momentum", "rate-free"), ("slow-samples",)))
    assert [sentence.split("**")[1] for sentence in text] == [
        "All together", "quadratic", "Rules of this library", "Doubts",
    ]  # fmt: skip
    assert conclusion(results(("ordered-momentum",), ("slow-samples",))) == []  # nothing is compared
    empty = results()
    assert conclusion(Results(empty.comparison, {}, pl.DataFrame(schema=_RUN), {}, {})) == []
