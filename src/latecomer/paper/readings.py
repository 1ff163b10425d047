"""The stage ``readings``: whether another reading of what the paper leaves out changes claims 1, 3 and 5.

One factor at a time. Hyper-parameters are those that were chosen for the reading that is judged; only where a reading
is about gamma, the best configuration with such a gamma takes their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from ..experiments.pieces import FinishedRuns
from ..experiments.ranking import Ranking, all_there
from ..experiments.spec import Sweep
from .evidence import CLAIMS, JUDGED_SEEDS, PAPER, Claim, judge_at, shares_trained
from .plan import Choice, choosing, judge_sweep
from .ranking import ranking

__all__ = ["AS_JUDGED", "READINGS", "reading_rows", "reading_sweeps", "reading_table"]

AS_JUDGED = "as judged"
READINGS = (
    AS_JUDGED, "batch 64", "15,000 updates", "width 0.4", "gamma as printed", "gamma the other way round",
)  # fmt: skip
SEEDS = JUDGED_SEEDS[:10]
_GAMMAS = {"gamma as printed": (0.9, 0.95), "gamma the other way round": (0.1, 0.05)}
_CLAIMS = (1, 3, 5)


def _with_gamma(rankings: Sequence[Ranking], choice: Choice, gammas: tuple[float, ...]) -> dict[str, dict[str, Any]]:
    """Return the choice, where mu2 and ordered mu2 have the best configuration with one of these gammas.

    The latest sweep of the choice that has such a configuration decides: it has the most seeds.

    Args:
        rankings: Those of the sweeps of the choice, the latest first.
        choice: The choice.
        gammas: The gammas.
    """
    found = {method: dict(choice[method]) for method in PAPER}
    for method in ("mu2", "ordered-mu2"):
        if found[method]["gamma"] not in gammas:
            ranked = (options for each in rankings for _, options in each[method])
            found[method] = next(options for options in ranked if options["gamma"] in gammas)
    return found


def reading_sweeps(runs: FinishedRuns, choice: Choice) -> dict[str, Sweep]:
    """Return the runs of every reading by its name; those that are judged anyway have the same keys there."""
    base = judge_sweep({method: choice[method] for method in PAPER}, SEEDS)
    once = replace(base, evaluate_every=base.steps)
    found = [ranking(sweep, runs) for sweep in choosing(runs)]
    rankings = [each for each in reversed(found) if each is not None]
    sweeps = {
        AS_JUDGED: base,
        "batch 64": replace(once, problem_options={"batch_size": 64}),
        "15,000 updates": replace(once, steps=15_000, evaluate_every=15_000),
        "width 0.4": replace(once, problem_options={"width": 0.4}),
        **{name: judge_sweep(_with_gamma(rankings, choice, gammas), SEEDS) for name, gammas in _GAMMAS.items()},
    }
    return {name: replace(sweep, name=f"reading: {name}") for name, sweep in sweeps.items()}


def reading_rows(runs: FinishedRuns, choice: Choice) -> dict[str, pl.DataFrame]:
    """Return the rows of the readings whose runs are all there."""
    found = {}
    for name, sweep in reading_sweeps(runs, choice).items():
        if all_there(sweep, runs):
            rows = [{"method": r.method, "seed": r.seed, "f1": runs.record(r.key)["final"]["f1"]} for r in sweep.runs()]
            found[name] = pl.DataFrame(rows, infer_schema_length=None)
    return found


def reading_table(rows: dict[str, pl.DataFrame]) -> pl.DataFrame:
    """Return one row per reading and claim: its direction, whether that is another one, and who trained how often.

    The direction of a claim is that of the comparison that is least in its favour: ``for``, ``against`` or ``none``.
    """
    table = []
    for name in READINGS:
        for claim in (claim for claim in CLAIMS if claim.number in _CLAIMS):
            plain: dict[str, Any] = {"reading": name, "number": claim.number, "claim": claim.text}
            if name not in rows:
                table.append({**plain, "direction": "not run"})
                continue
            direction, least = _direction(claim, rows[name])
            before = _direction(claim, rows[AS_JUDGED])[0] if AS_JUDGED in rows else None
            changed = None if before is None else direction != before
            shares = shares_trained(rows[name])
            table.append({**plain, "direction": direction, "changed": changed, "least": least, "pairs": len(SEEDS),
                          **{method: shares[method].value for method in PAPER}})  # fmt: skip
    columns = ["reading", "number", "claim", "direction", "changed", "least", "pairs", *PAPER]
    schema: dict[str, Any] = dict.fromkeys(columns, pl.Float64) | dict.fromkeys(columns[:4], pl.String)
    schema |= {"number": pl.Int64, "changed": pl.Boolean, "pairs": pl.Int64}
    return pl.DataFrame([{**dict.fromkeys(columns), **row} for row in table], schema=schema)


def _direction(claim: Claim, rows: pl.DataFrame) -> tuple[str, float]:
    least = min(each.effect.value for each in judge_at(claim, rows, len(SEEDS)).compared)
    return ("for" if least > 0 else "against" if least < 0 else "none"), least
