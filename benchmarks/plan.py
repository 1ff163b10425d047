"""What `latecomer plan` predicts beside what two real workers do, and what it says about the text task."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from latecomer._util.checks import whole_number
from latecomer._util.files import writable
from latecomer.cli._entry import run
from latecomer.cli._output import print_text
from latecomer.cli.plan import HEADS, cells
from latecomer.planning import (
    JobTimes,
    Prediction,
    plan,
    predict_policy,
    predict_rounds,
    recorded_times,
    time_jobs,
)  # fmt: skip
from latecomer.planning.plan import ASYNC, BUCKETS, SYNCHRONOUS
from latecomer.problems import Problem, Text
from latecomer.report.markdown import Part, write_page
from latecomer.training import Task, fit
from two_processes import PROCESSES, all_reduce, side_by_side

_JOBS = 60
_PAUSES = (0.005, 0.03)  # seconds of the short and the long jobs of the sleeping task
_LARGE = 0.2  # gaps above this are explained
_QUIET = 0.5  # load average, up to which nothing else ran


def _sleeping_batch(sample: int) -> torch.Tensor:
    return torch.full((1, 4), float(sample % 4 == 0))


def _sleeping_group(batch: torch.Tensor) -> int:
    return int(batch[0, 0])


def _sleeping_loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    time.sleep(_PAUSES[_sleeping_group(batch)])
    loss: torch.Tensor = model(batch).square().mean()
    return loss


def sleeping() -> Task:
    """Return a task whose jobs sleep, a quarter of them long: its durations do not depend on the load."""
    return Task(
        torch.nn.Linear(4, 1), _sleeping_loss, batch_fn=_sleeping_batch, group_fn=_sleeping_group,
        groups=("short", "long"), name="sleeping",
    )  # fmt: skip


def measured(problem: Problem, policy: str, steps: int, record: Path, timed: JobTimes) -> tuple[float, JobTimes]:
    """Train with real workers; return contributions per second, and the durations of the run."""
    result = fit(
        problem, method="async-sgd", lr=1e-3, workers=PROCESSES, steps=steps, sync=policy == SYNCHRONOUS,
        evaluate_every=steps, record=record,
    )  # fmt: skip
    trace = result.trace
    first = len(trace) // 10  # workers do not all begin at once
    rate = (len(trace) - first) / float(trace.end[-1] - trace.end[first - 1])
    return rate, recorded_times(trace, timed)


def rows_of(name: str, problem: Problem, steps: int, folder: Path) -> list[dict[str, Any]]:
    """Return one row per scheme, and one for each ratio that the advice rests on."""
    timed = time_jobs(problem, jobs=_JOBS, method="async-sgd")
    both = side_by_side(problem, _JOBS, "async-sgd")
    together = replace(timed, seconds=[one + other for one, other in zip(*(own.seconds for own in both), strict=True)])
    rows: dict[str, dict[str, Any]] = {}

    def add(what: str, predict: Callable[[JobTimes], Prediction], rate: float, during: JobTimes) -> None:
        times = {"alone": timed, "two at a time": together, "from the run": during}
        rows[what] = {"predicted": {key: predict(own).jobs for key, own in times.items()}, "measured": rate}
        # With the shares of the timed jobs: a run that happened to draw more long ones was not slower.
        rows[what]["slower"] = {key: replace(own, shares=timed.shares).mean / timed.mean for key, own in times.items()}

    for policy, what in ((SYNCHRONOUS, f"{SYNCHRONOUS}, one server"), (ASYNC, ASYNC)):
        rate, during = measured(problem, policy, steps, folder / f"{name}-{policy}.parquet", timed)
        add(what, lambda own, policy=policy: predict_policy(own, PROCESSES, policy), rate, during)
    for buckets, what in ((False, SYNCHRONOUS), (True, BUCKETS)):
        rate, during = all_reduce(problem, steps // PROCESSES, timed, buckets=buckets)
        add(what, lambda own, buckets=buckets: predict_rounds(own, PROCESSES, buckets=buckets), rate, during)
        reduced = predict_rounds(replace(timed, server=during.server), PROCESSES, buckets=buckets).jobs
        rows[what] |= {"reduce": during.server - timed.server, "round": PROCESSES / rate, "reduced": reduced}
    for what in (SYNCHRONOUS, BUCKETS):
        own, waits = rows[ASYNC], rows[what]
        ratios = {key: own["predicted"][key] / waits["predicted"][key] for key in own["predicted"]}
        rows[f"{ASYNC} / {what}"] = {
            "predicted": ratios, "measured": own["measured"] / waits["measured"],
            "reduce": waits["reduce"], "round": waits["round"], "reduced": own["predicted"]["alone"] / waits["reduced"],
        }  # fmt: skip
    for row in rows.values():
        row["gaps"] = {key: row["measured"] / each - 1 for key, each in row["predicted"].items()}
    return [{"task": name, "what": what, **row} for what, row in rows.items()]


def explained(row: dict[str, Any]) -> str:
    """Say where a large gap comes from, as far as jobs timed two at a time without a server show it."""
    gaps = row["gaps"]
    if abs(gaps["alone"]) <= _LARGE:
        return ""
    if "slower" not in row:  # a ratio
        return (
            f"{_reduce(row)}, which is not predicted: with it {row['measured'] / row['reduced'] - 1:+.0%}, and "
            f"{gaps['from the run']:+.0%} with the durations of the runs"
        )
    slower = row["slower"]
    words = f"two at a time take {slower['two at a time']:.2f} times as long as one alone, measured without a server"
    if abs(gaps["two at a time"]) <= _LARGE:
        return words
    return (
        f"{words}, which leaves {gaps['two at a time']:+.0%}; in the run itself {slower['from the run']:.2f} times"
        f"{', and ' + _reduce(row) if 'reduce' in row else ''}, which leaves {gaps['from the run']:+.0%}"
    )


def _reduce(row: dict[str, Any]) -> str:
    """Say how long the all-reduce of a round took."""
    return f"an all-reduce takes {1e3 * row['reduce']:.2g} ms of a round's {1e3 * row['round']:.2g}"


def write_plan_of_text(problem: Text, folder: Path, command: str) -> Path:
    """Write what `latecomer plan` prints for the text task."""
    found = plan(problem, (4, 8, 16, 64), policies={})
    jobs = ", ".join(
        f"{1e3 * sum(own) / len(own):.3g} ms for {share:.0%} of them"
        for share, own in zip(found.times.shares, found.times.seconds, strict=True)
    )
    lengths = ", ".join(map(str, problem.lengths))
    words = f"Jobs on windows of {lengths} bytes took {jobs}. The last column is for {found.samples:,} samples."
    advice = [[sentence] for sentence in (*found.advice, found.caution) if sentence]
    parts = [
        Part(["what it says"], advice, title="Advice"),
        Part(HEADS, cells(found, every=False), title="Table", words=words),
    ]
    return write_page(folder, "plan-text", "`latecomer plan` on the text task", parts, command)


@dataclass(frozen=True)
class Command:
    """Predict and measure, with two real workers, and write the plan of the text task; takes two or three minutes.

    Example: python benchmarks/plan.py --out docs/results
    """

    steps: int = 600
    """Contributions per run."""
    out: Path = Path("results")
    """Folder for the table and the records."""

    def run(self, console: Console) -> None:
        """Time, predict, train, write."""
        whole_number("steps", self.steps, least=100)  # of every group there are some
        writable(self.out)
        load = os.getloadavg()[0]
        records = self.out / "records"
        records.mkdir(exist_ok=True)
        text = Text(width=32, layers=2, heads=4, lengths=(32, 64, 128, 256), evaluated=256)
        rows = []
        for name, problem in (("sleeping", sleeping()), ("text", text)):
            print_text(console, f"{name}: timing, then {self.steps} contributions of each kind")
            rows += rows_of(name, problem, self.steps, records)
        heads = ["task", "jobs per second", "measured", "predicted", "gap", "from two at a time", "gap", "from the run",
                 "gap", "why"]  # fmt: skip
        lines = [
            [
                row["task"], row["what"], f"{row['measured']:.3g}",
                *(text for key, gap in row["gaps"].items() for text in (f"{row['predicted'][key]:.3g}", f"{gap:+.0%}")),
                explained(row),
            ]
            for row in rows
        ]  # fmt: skip
        words = (
            f"Predicted from {_JOBS} jobs timed alone in one process, which is what `latecomer plan` does; from the "
            "same jobs timed in two processes at a time, without a server; and from the durations of the measured run "
            f"itself, that of its all-reduce among them. Measured with {PROCESSES} worker processes on "
            f"{os.cpu_count()} cores: {ASYNC}, and synchronous rounds through one server, which are runs of `fit`; "
            f"{SYNCHRONOUS} and {BUCKETS}, which are rounds with an all-reduce of torch.distributed (gloo). The advice "
            f"rests on the last two rows of a task. The load average was {load:.1f} before the start"
            f"{', so other programs ran: only the ratios mean something' * (load > _QUIET)}. "
            f"Gaps above {_LARGE:.0%} have a reason in the last column."
        )
        command = f"python benchmarks/plan.py --steps {self.steps}"
        data = {"load": load, "rows": rows}
        path = write_page(self.out, "plan", "predictions beside measurements", [Part(heads, lines, words=words)],
                          command, data)  # fmt: skip
        for record in records.iterdir():
            record.unlink()
        records.rmdir()
        for written in (path, write_plan_of_text(text, self.out, command)):
            print_text(console, written.read_text())
            print_text(console, f"Written to {written}")


if __name__ == "__main__":
    sys.exit(run(Command, "python benchmarks/plan.py", Command.__doc__ or ""))
