"""``python -m studies.rivals``: Ringmaster's quadratic with worker times sqrt(i), run again.

    python -m studies.rivals [--seeds 3] [--out docs/rivals]

Writes ringmaster.csv (the curves), ringmaster.md (a table) and ringmaster.svg.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
from pathlib import Path

import polars as pl
import torch
from rich.console import Console

from latecomer.report.markdown import write_table
from latecomer.report.style import blank, style_of, svg

from .ringmaster import DIMENSIONS, METHODS, WORKERS, curves

AT = (500.0, 1000.0, 2000.0)


def figure(rows: pl.DataFrame) -> str:
    """Draw f above its minimum against the time, one line per seed."""
    drawn, axes = blank(7.4, 4.2, f"Ringmaster's quadratic: {WORKERS:,} workers with times 1 + sqrt(i) + |N(0, i + 1)|")
    for method, options in METHODS.items():
        colour, dash = style_of(method)
        for n, (_, own) in enumerate(rows.filter(pl.col("method") == method).group_by("seed", maintain_order=True)):
            label = f"{method}, {', '.join(f'{k}={v:g}' for k, v in options.items())}" if n == 0 else None
            axes.plot(own["time"], own["loss"], color=colour, linestyle=dash, linewidth=1.4, label=label)
    axes.set_yscale("log")
    axes.set_xlabel("virtual seconds")
    axes.set_ylabel("f(x) - min f")
    axes.legend(frameon=False, fontsize=8)
    return svg(drawn)


def main() -> None:
    """Run, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("docs/rivals"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    console, found = Console(), []
    for seed in range(given.seeds):
        for row in curves(seed):
            found.append(row)
            if row["arrival"] == 0:
                console.print(f"seed {seed}: {row['method']} ...")
    rows = pl.DataFrame(found)
    given.out.mkdir(parents=True, exist_ok=True)
    rows.with_columns(pl.col("time", "loss", "squared_gradient").round_sig_figs(6)).write_csv(
        given.out / "ringmaster.csv"
    )
    (given.out / "ringmaster.svg").write_text(figure(rows))
    table = []
    for method, options in METHODS.items():
        own = rows.filter(pl.col("method") == method)
        ends = [own.filter((pl.col("seed") == seed) & (pl.col("time") <= at)).sort("arrival")["loss"][-1]
                for at in AT for seed in range(given.seeds)]  # fmt: skip
        medians = [statistics.median(ends[i * given.seeds : (i + 1) * given.seeds]) for i in range(len(AT))]
        updates = statistics.median(own.group_by("seed").agg(pl.col("update").max())["update"].to_list())
        name = f"`{method}`, " + ", ".join(f"{key} = {value:g}" for key, value in options.items())
        table.append([name, *(f"{median:.3g}" for median in medians), f"{updates:,.0f}"])
    heads = ["method", *(f"loss at {at:,.0f} s" for at in AT), "updates"]
    title = f"Ringmaster's quadratic, d = {DIMENSIONS}, {WORKERS:,} workers, median of {given.seeds} seeds"
    command = shlex.join(["python", "-m", "studies.rivals", *sys.argv[1:]])
    write_table(given.out, "ringmaster", title, heads, table, command, table)
    console.print(f"wrote {given.out}/ringmaster.csv, .md, .json and .svg")


if __name__ == "__main__":
    main()
