"""Harder settings for the few that lead: seeds never looked at, other slow classes, other workers, other delays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from ..experiments import Store, Sweep
from .board import WITHIN, found_rows, whole_seeds
from .candidates import CANDIDATES, Candidate
from .plans import HELD_OUT, PAPERS_DELAYS, Size
from .stability import stability

__all__ = ["HARD", "LEADERS", "Setting", "hard_plan", "hard_table"]

RATES = (0.01, 0.03, 0.06, 0.1)
LEADERS = (
    "momentum",
    "ordered-momentum",
    "catch-up",
    "clipped-momentum, c 2",
    "clipped-catch-up, c 2",
    "clipped-catch-up, c 1.25, by lateness",
    "clipped-catch-up, c 1.5, by lateness",
)
"""Who is put to the test, with the methods they have to beat."""


@dataclass(frozen=True)
class Setting:
    """One way to make it harder.

    Args:
        name: In a few words.
        delays: Name of the delay model.
        delay_options: Its arguments.
        digits: More arguments of digits.

    Examples:
        >>> HARD[0].name
        'fresh seeds'
    """

    name: str
    delays: str = "data-dependent"
    delay_options: Mapping[str, Any] = field(default_factory=lambda: dict(PAPERS_DELAYS))
    digits: Mapping[str, Any] = field(default_factory=dict)

    @property
    def slow_share(self) -> float:
        """Share of slow samples."""
        return float(self.delay_options["slow_share"])


HARD: tuple[Setting, ...] = (
    Setting("fresh seeds"),
    Setting("slow class 3", digits={"slow_class": 3}),
    Setting("M = 3", delay_options={**PAPERS_DELAYS, "workers": 3}),
    Setting("M = 31", delay_options={**PAPERS_DELAYS, "workers": 31}),
    Setting("delays 10 times longer", delay_options={**PAPERS_DELAYS, "workers": 70}),
    Setting("slow jobs last 100", "sample-cost", {"workers": 7, "cost": [1.0, 100.0], "slow_share": 0.1}),
    Setting("slow share 0.3", delay_options={**PAPERS_DELAYS, "slow_share": 0.3}),
    Setting("no delay", "constant", {"workers": 1, "slow_share": 0.1}),
)
"""All of them on seeds that nothing was chosen on."""


def hard_plan(size: Size) -> dict[str, tuple[Sweep, Sweep]]:
    """Return two sweeps a setting: digits over learning rates, and the quadratic with its centres 10 apart.

    Examples:
        >>> from .plans import size_of
        >>> digits, far = hard_plan(size_of("quick"))["M = 3"]
        >>> digits.delay_options["workers"], len(far.runs())
        (3, 7)
    """
    who = [CANDIDATES[name] for name in LEADERS]
    network, steps = size.digits
    return {s.name: (_digits(s, size, who, network, steps), _far(s, size, who)) for s in HARD}


def _rates(size: Size) -> tuple[float, ...]:
    return RATES if size.seeds > 1 else RATES[1:2]


def _digits(setting: Setting, size: Size, who: Sequence[Candidate], network: str, steps: int) -> Sweep:
    rates = _rates(size)
    return Sweep(
        f"hard-{setting.name}-{size.name}",
        "digits",
        setting.delays,
        steps=steps,
        seeds=HELD_OUT[: size.seeds],
        grids=tuple(each.grid(rates) for each in who),
        evaluate_every=steps,
        problem_options={"network": network, **setting.digits},
        delay_options=dict(setting.delay_options),
    )


def _far(setting: Setting, size: Size, who: Sequence[Candidate]) -> Sweep:
    return Sweep(
        f"hard-far-{setting.name}-{size.name}",
        "two-centres",
        setting.delays,
        steps=size.fair_steps,
        seeds=HELD_OUT[: size.fair_seeds],
        grids=tuple(each.grid([60.0 / size.fair_steps]) for each in who),
        evaluate_every=size.fair_steps,
        problem_options={"distance": 10.0, "slow_share": setting.slow_share},
        delay_options=dict(setting.delay_options),
    )


def hard_table(size: Size, store: Store) -> pl.DataFrame:
    """Return one row a setting and candidate, of the runs that are there.

    ``stable`` is the share of runs within 5 % of the best mean in this setting, ``f1`` and ``f1_slow`` are those at the
    candidate's own best learning rate, ``worst`` is the lowest F1 of a seed there; ``excess`` and ``say`` (influence of
    slow over fast samples) are those on the quadratic.

    Examples:
        >>> from pathlib import Path
        >>> from .plans import size_of
        >>> hard_table(size_of("quick"), Store(Path("nowhere"))).height
        0
    """
    table = []
    for name, (digits, far) in hard_plan(size).items():
        rows, fair = whole_seeds(found_rows(digits, store), len(_rates(size))), found_rows(far, store)
        shares = stability(rows, within=WITHIN, named="candidate") if rows else {}
        for candidate, found in shares.items():
            best = [r for r in rows if r["candidate"] == candidate and r["lr"] == found.best]
            own = [r for r in fair if r["candidate"] == candidate]
            excess = [r["excess"] for r in own if r["excess"] is not None]
            say = [r["slow_over_fast"] for r in own if r["slow_over_fast"] is not None]
            table.append(
                {
                    "setting": name,
                    "candidate": candidate,
                    "stable": found.share,
                    "runs": found.runs,
                    "lr": found.best,
                    "f1": found.score,
                    "worst": min(r["f1"] for r in best),
                    "f1_slow": sum(r["f1_slow"] for r in best) / len(best),
                    "excess": sum(excess) / len(excess) if excess else None,
                    "say": sum(say) / len(say) if say else None,
                }
            )
    order = {name: place for place, name in enumerate(LEADERS)}
    settings = {setting.name: place for place, setting in enumerate(HARD)}
    table.sort(key=lambda row: (settings[row["setting"]], order[row["candidate"]]))
    return pl.DataFrame(table, infer_schema_length=None)
