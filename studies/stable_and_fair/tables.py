"""Tables of the study as Markdown: what `docs/research.md` links to, so that no number there is typed by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from latecomer.report.markdown import Part

from .candidates import CANDIDATES, RECOMMENDED
from .fairness import PROBLEMS
from .figures import NAMES
from .plans import METRICS

__all__ = ["adamw_parts", "hard_parts", "number", "pareto_parts", "real_parts", "share"]


def number(value: float | None, digits: int = 2) -> str:
    """Return a number for a table: an empty string if there is none, ``diverged`` if it is infinite.

    Examples:
        >>> number(0.123), number(0.0123), number(float("inf")), number(None)
        ('0.12', '0.012', 'diverged', '')
    """
    if value is None or math.isnan(value):
        return ""
    if math.isinf(value):
        return "diverged"
    return f"{value:.{digits}f}" if 0.1 <= abs(value) < 1e4 or value == 0 else f"{value:.{digits}g}"


def share(row: Mapping[str, Any], usual: int, end: str = "") -> str:
    """Return the share in a row with its interval, and the number of seeds if it is not the usual one.

    Args:
        row: A row of a table of the study.
        usual: The number of seeds that is not printed.
        end: Suffix of the columns ``stable``, ``low``, ``high`` and ``seeds``.

    Examples:
        >>> share({"stable": 0.5, "low": 0.4, "high": 0.6, "seeds": 5}, usual=5)
        '0.50 (0.40 to 0.60)'
        >>> share({"stable_kind": 0.5, "seeds_kind": 1}, usual=5, end="_kind")
        '0.50, 1 seed'
    """
    value, low, high, seeds = (row.get(f"{name}{end}") for name in ("stable", "low", "high", "seeds"))
    if value is None or seeds is None:
        return ""
    interval = "" if low is None or high is None else f" ({low:.2f} to {high:.2f})"
    return f"{value:.2f}{interval}{'' if seeds == usual else ', ' + _seeds(seeds)}"


def _seeds(count: int) -> str:
    return f"{count} seed{'' if count == 1 else 's'}"


def _interval(usual: int) -> str:
    return f"with its 95 % interval over {_seeds(usual)}" if usual > 1 else "on one seed"


def _usual(table: pl.DataFrame) -> int:
    """Return the most frequent number of seeds in a table; cells with another number print it."""
    counts = [value for name in table.columns if name.startswith("seeds") for value in table[name].drop_nulls()]
    return int(max(counts, key=counts.count, default=1))


def pareto_parts(table: pl.DataFrame) -> list[Part]:
    """Return the tables of the result of `studies.stable_and_fair.board`: summary, stability, lead, scores, fairness.

    Examples:
        >>> row = {"candidate": ["momentum"], "stable_text": [0.5], "seeds_text": [1], "influence_far": [1.0]}
        >>> pareto_parts(pl.DataFrame(row))[1].lines()[-1]
        '| momentum | 0.50 |'
    """
    known = {row["candidate"]: row for row in table.iter_rows(named=True)}
    few = [known[name] for name in CANDIDATES if name in known]
    problems = [name for name in METRICS if f"stable_{name}" in table.columns]
    fair = ["influence, far", *(f"excess, {name}" for name in PROBLEMS), "counter-example"]
    usual = _usual(table.select(f"seeds_{name}" for name in problems))

    def part(title: str, words: str, cell: Callable[[Mapping[str, Any], str], str]) -> Part:
        rows = [[row["candidate"], *(cell(row, name) for name in problems)] for row in few]
        return Part(["candidate", *(NAMES[name] for name in problems)], rows, title, words)

    return [
        _short(few, problems),
        part(
            "Stability",
            f"Share of the learning rates that end within 5 % of the best, {_interval(usual)}.",
            lambda row, name: share(row, usual, f"_{name}"),
        ),
        part(
            "Stability within its kind",
            "The same share, relative to the best candidate of the same kind (momentum or AdamW).",
            lambda row, name: share(row, usual, f"_kind_{name}"),
        ),
        part(
            "Lead",
            f"Share of {RECOMMENDED} minus that of each other candidate of its kind, both within the kind, paired by "
            "seed, with its 95 % interval. The intervals are not corrected for multiple comparisons.",
            _lead,
        ),
        part(
            "At their best learning rate",
            "Mean F1 / F1 of slow classes. On text these are losses: all / on the longest windows, lower is better.",
            _best,
        ),
        Part(
            ["candidate", *fair, "seeds"],
            [[row["candidate"], *_fair(row), number(row.get("seeds_far"), 0)] for row in few],
            "Fairness",
            "Relative influence of slow samples; excess losses; measured value over the bound on the counter-example.",
        ),
    ]


def _short(rows: Sequence[Mapping[str, Any]], problems: Sequence[str]) -> Part:
    """Return the summary table; shares within a kind are shown if they differ by 0.1 or more from the overall ones."""
    columns: dict[str, str] = {}
    for name in problems:
        both = [(row.get(f"stable_{name}"), row.get(f"stable_kind_{name}")) for row in rows]
        columns[NAMES[name]] = f"stable_{name}"
        if any(near is not None and own is not None and abs(near - own) >= 0.1 for near, own in both):
            columns[f"{NAMES[name]}, within its kind"] = f"stable_kind_{name}"
    fair = {"influence, far": "influence_far", "excess, far": "excess_far", "counter-example": "theorem"}
    cells = [
        [
            row["candidate"],
            *("" if row.get(key) is None else f"{row[key]:.2f}" for key in columns.values()),
            *(number(row.get(key)) for key in fair.values()),
        ]
        for row in rows
    ]
    words = "Share of the learning rates that end within 5 % of the best, and three measures of fairness."
    return Part(["candidate", *columns, *fair], cells, "In short", words)


def _lead(row: Mapping[str, Any], problem: str) -> str:
    return _estimate({f"lead{end}": row.get(f"lead{end}_{problem}") for end in ("", "_low", "_high")}, "lead", "+")


def _best(row: Mapping[str, Any], problem: str) -> str:
    best, slow, lr = (row.get(f"{name}_{problem}") for name in ("best", "slow", "lr"))
    return "" if best is None else f"{number(best)} / {number(slow)} at {lr:.3g}"


def _fair(row: Mapping[str, Any]) -> list[str]:
    excess = (row.get(f"excess_{name}") for name in PROBLEMS)
    return [number(row.get("influence_far")), *(number(value) for value in excess), number(row.get("theorem"))]


def hard_parts(table: pl.DataFrame) -> list[Part]:
    """Return the tables of the result of `hard_table`, one row per setting and one column per candidate.

    Examples:
        >>> row = {"setting": "M = 3", "candidate": "momentum", "stable": 0.5, "low": None, "high": None, "seeds": 1}
        >>> row |= {"stable_kind": 1.0, "seeds_kind": 1, "best": 0.9, "slow": 0.8, "worst": 0.7}
        >>> row |= {"excess": 0.0123, "influence": 1.0}
        >>> [part.lines()[-1] for part in hard_parts(pl.DataFrame([row]))]
        ['| M = 3 | 0.50 |', '| M = 3 | 1.00 |', '| M = 3 | 0.90 / 0.80 / 0.70 |', '| M = 3 | 0.012 (1.00) |']
    """
    who = [name for name in CANDIDATES if name in set(table["candidate"])]
    cells = {(row["setting"], row["candidate"]): row for row in table.iter_rows(named=True)}
    usual = _usual(table)

    def part(title: str, words: str, cell: Callable[[Mapping[str, Any]], str]) -> Part:
        rows = [
            [setting, *(cell(cells[setting, name]) if (setting, name) in cells else "" for name in who)]
            for setting in dict.fromkeys(table["setting"])
        ]
        return Part(["setting", *who], [row for row in rows if any(row[1:])], title, words)

    return [
        part(
            "Stability",
            f"Share of the learning rates that end within 5 % of the best in this setting, {_interval(usual)}.",
            lambda row: share(row, usual),
        ),
        part(
            "Stability within its kind",
            "The same share, relative to the best candidate of the same kind (momentum or AdamW).",
            lambda row: share(row, usual, "_kind"),
        ),
        part(
            "At their best learning rate",
            "Mean F1 / F1 of the slow class / F1 of the worst seed. On text these are losses, lower is better.",
            lambda row: " / ".join(number(row[name]) for name in ("best", "slow", "worst")),
        ),
        part(
            "Fairness",
            "Excess loss on the quadratic with its centres 10 apart (in brackets: relative influence of slow samples).",
            lambda row: (
                "" if row["excess"] is None else f"{number(row['excess'])} ({number(row['influence']) or 'none'})"
            ),
        ),
    ]


def real_parts(table: pl.DataFrame) -> list[Part]:
    """Return the table of the result of `studies.stable_and_fair.real`.

    Examples:
        >>> row = {"candidate": "momentum", "lr": 0.03, "f1": 0.9, "f1_slow": 0.8, "slow": 10.4, "fast": 1.2}
        >>> real_parts(pl.DataFrame([row]))[0].lines()[-1]
        '| momentum | 0.90 / 0.80 | 10.4 / 1.2 |'
    """
    rates: Sequence[float] = sorted(set(table["lr"]))
    cells = {(row["candidate"], row["lr"]): row for row in table.iter_rows(named=True)}
    rows = []
    for name in dict.fromkeys(table["candidate"]):
        own = [cells[name, lr] for lr in rates if (name, lr) in cells]
        ends = {row["lr"]: f"{number(row['f1'])} / {number(row['f1_slow'])}" for row in own}
        late = [[row[group] for row in own if row[group] is not None] for group in ("slow", "fast")]
        delays = " / ".join(number(sum(values) / len(values), 1) if values else "none" for values in late)
        rows.append([name, *(ends.get(lr, "") for lr in rates), delays])
    words = "Final F1 / F1 of the slow class; mean delay of slow / fast batches. One run per cell."
    return [Part(["candidate", *(f"lr {lr:g}" for lr in rates), "delays"], rows, words=words)]


def adamw_parts(table: pl.DataFrame) -> list[Part]:
    """Return the tables of the result of `adamw_table`: one per problem, the differences paired by seed, the quadratic.

    Examples:
        >>> row = {"problem": "digits", "candidate": "balanced-adamw", "stable": 0.5, "stable_kind": 0.5, "seeds": 1}
        >>> row |= {"decades": 1.0, "guessing": 1, "runs": 4, "best": 0.9, "slow": 0.8, "lr": 0.001}
        >>> row |= {"influence": 0.97, "influence_all": 0.9, "clipped_slow": 0.5, "clipped_fast": 0.25}
        >>> adamw_parts(pl.DataFrame([row]))[0].lines()[-1]
        '| balanced-adamw | 0.50 | 0.50 | 1.00 | 1 of 4 | 0.90 / 0.80 at 0.001 | 0.97 | 0.90 | 0.50 / 0.25 |'
    """
    heads = ["near the best", "within its kind", "decades", "no better than guessing", "at its best rate", "influence"]
    heads += ["influence, all rates", "clipped, slow / fast"]
    parts = []
    for problem in (name for name in dict.fromkeys(table["problem"]) if name in NAMES):
        rows = list(table.filter(pl.col("problem") == problem).iter_rows(named=True))
        cells = [
            [
                row["candidate"],
                share(row, row["seeds"]),
                _estimate(row, "stable_kind"),
                _estimate(row, "decades"),
                f"{row['guessing']} of {row['runs']}",
                f"{number(row['best'])} / {number(row['slow'])} at {row['lr']:.3g}",
                number(row["influence"]),
                number(row["influence_all"]),
                f"{number(row['clipped_slow'])} / {number(row['clipped_fast'])}",
            ]
            for row in rows
        ]
        title, words = (
            NAMES[problem][0].upper() + NAMES[problem][1:],
            f"Intervals of 95 % over {_seeds(rows[0]['seeds'])}.",
        )
        parts.append(Part(["candidate", *heads], cells, title, words))
    leads = {"stable_kind": "share within the kind", "decades": "decades", "best": "F1 or loss", "slow": "slow samples"}
    cells = [
        [NAMES[row["problem"]], row["candidate"], *(_estimate(row, f"lead_{key}", "+") for key in leads)]
        for row in table.iter_rows(named=True)
        if row.get("lead_best") is not None
    ]
    if cells:
        words = "balanced-adamw minus each other candidate, paired by seed, each at its own best learning rate."
        parts.append(Part(["problem", "candidate", *leads.values()], cells, "Differences", words))
    far = [row for row in table.iter_rows(named=True) if row["problem"] == "far"]
    if far:
        cells = [[row["candidate"], number(row["influence"]), number(row["excess"])] for row in far]
        words = "The quadratic with its centres 10 apart: relative influence of slow samples, and excess loss."
        parts.append(Part(["candidate", "influence", "excess"], cells, "Far", words))
    return parts


def _estimate(row: Mapping[str, Any], name: str, sign: str = "") -> str:
    """Return a number with its interval if there is one."""
    value, low, high = (row.get(f"{name}{end}") for end in ("", "_low", "_high"))
    if value is None:
        return ""
    return f"{value:{sign}.2f}" + ("" if low is None or high is None else f" ({low:{sign}.2f} to {high:{sign}.2f})")
