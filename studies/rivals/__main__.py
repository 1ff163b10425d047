"""``python -m studies.rivals``: Ringmaster's quadratic with worker times sqrt(i), run again.

    python -m studies.rivals [--seeds 20] [--out docs/rivals]      our code, beside the stored curves of theirs
    python -m studies.rivals --code FOLDER                        run their public code, and store its curves

The first writes ringmaster.csv (the curves), ringmaster.md (a table) and ringmaster.svg; the second public_code.csv.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from rich.console import Console

from latecomer.report.markdown import write_table
from latecomer.report.style import blank, style_of, svg

from .public_code import curves_of_public_code
from .ringmaster import DIMENSIONS, METHODS, WORKERS, curves

AT = (500.0, 1000.0, 2000.0)
DRAWN = 3
"""So many seeds are drawn; the table has all."""


def figure(ours: pl.DataFrame, theirs: pl.DataFrame) -> str:
    """Draw f above its minimum against the time: one line for each of a few seeds, dotted for the public code."""
    drawn, axes = blank(7.4, 4.2, f"Ringmaster's quadratic: {WORKERS:,} workers with times 1 + sqrt(i) + |N(0, i + 1)|")
    for method, options in METHODS.items():
        colour, _ = style_of(method)
        for rows, whose, look in ((ours, "", ("-", 1.4)), (theirs, ", public code", (":", 1.6))):
            own = rows.filter((pl.col("method") == method) & (pl.col("seed") < DRAWN))
            for n, (_, one) in enumerate(own.group_by("seed", maintain_order=True)):
                label = f"{_named(method, options, '{}')}{whose}" if n == 0 else None
                axes.plot(one["time"], one["loss"], color=colour, linestyle=look[0], linewidth=look[1], label=label)
    axes.set_yscale("log")
    axes.set_xlabel("virtual seconds")
    axes.set_ylabel("f(x) - min f")
    axes.legend(frameon=False, fontsize=8)
    return svg(drawn)


def table(ours: pl.DataFrame, theirs: pl.DataFrame) -> list[list[str]]:
    """Return one row per method and code: medians over seeds, with the smallest and the largest."""
    rows = []
    for method, options in METHODS.items():
        for found, whose in ((ours, "ours"), (theirs, "public")):
            own = found.filter(pl.col("method") == method)
            if own.is_empty():
                continue
            of_seed = [one.sort("time") for (_, one) in own.group_by("seed", maintain_order=True)]
            updates = statistics.median(one["update"][-1] for one in of_seed)
            numbers = [*(_of_seeds([_loss_at(one, at) for one in of_seed]) for at in AT), f"{updates:,.0f}"]
            rows.append([_named(method, options, "`{}`"), whose, str(len(of_seed)), *numbers])
    return rows


def _loss_at(curve: pl.DataFrame, time: float) -> float:
    """Return the loss at this time: between two points of the curve its logarithm is taken as a straight line."""
    return float(np.exp(np.interp(time, curve["time"].to_numpy(), np.log(curve["loss"].to_numpy()))))


def _of_seeds(losses: list[float]) -> str:
    return f"{statistics.median(losses):.3g} ({min(losses):.3g} to {max(losses):.3g})"


def _named(method: str, options: dict[str, Any], quoted: str) -> str:
    return f"{quoted.format(method)}, {', '.join(f'{name} = {value:g}' for name, value in options.items())}"


def main() -> None:
    """Run, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("docs/rivals"))
    parser.add_argument("--code", type=Path, help="folder with the public code of Ringmaster's authors")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    stored = given.out / "public_code.csv"
    if given.code is not None:
        _write(_run(given.seeds, lambda seed: curves_of_public_code(given.code, seed)), stored)
        return
    ours = _write(_run(given.seeds, curves), given.out / "ringmaster.csv")
    theirs = pl.read_csv(stored) if stored.exists() else ours.clear()
    (given.out / "ringmaster.svg").write_text(figure(ours, theirs))
    rows = table(ours, theirs)
    heads = ["method", "code", "seeds", *(f"loss at {at:,.0f} s" for at in AT), "updates"]
    title = f"Ringmaster's quadratic, d = {DIMENSIONS}, {WORKERS:,} workers, median (smallest to largest) over seeds"
    command = shlex.join(["python", "-m", "studies.rivals", *sys.argv[1:]])
    write_table(given.out, "ringmaster", title, heads, rows, command, rows)
    Console().print(f"wrote {given.out}/ringmaster.md, .json and .svg")


def _run(seeds: int, run: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of every seed, and say what is run."""
    console = Console()
    for seed in range(seeds):
        method = ""
        for row in run(seed):
            if row["method"] != method:
                method = row["method"]
                console.print(f"seed {seed}: {method} ...")
            yield row


def _write(rows: Iterator[dict[str, Any]], path: Path) -> pl.DataFrame:
    """Write the curves, and return them as they can be read again."""
    pl.DataFrame(list(rows)).with_columns(pl.col("time", "loss", "squared_gradient").round_sig_figs(6)).write_csv(path)
    Console().print(f"wrote {path}")
    return pl.read_csv(path)


if __name__ == "__main__":
    main()
