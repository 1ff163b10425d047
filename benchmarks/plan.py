"""What `latecomer plan` predicts beside what two real workers do, synchronous and asynchronous."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from latecomer._util.checks import whole_number
from latecomer._util.files import writable
from latecomer.cli._entry import run
from latecomer.cli._output import print_text
from latecomer.planning import JobTimes, predict_policy, recorded_times, time_jobs
from latecomer.problems import Problem, Text
from latecomer.report.markdown import Part, write_page
from latecomer.training import Task, fit

WORKERS = 2
POLICIES = ("synchronous", "async")
_PAUSES = (0.005, 0.03)  # seconds of the short and the long jobs of the sleeping task
_LARGE = 0.2  # gaps above this are explained


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


def measured(problem: Problem, policy: str, steps: int, record: Path) -> tuple[float, JobTimes]:
    """Train with real workers; return contributions per second, and the durations of the run."""
    result = fit(
        problem, method="async-sgd", lr=1e-3, workers=WORKERS, steps=steps, sync=policy == "synchronous",
        evaluate_every=steps, record=record,
    )  # fmt: skip
    trace = result.trace
    first = len(trace) // 10  # workers do not all begin at once
    rate = (len(trace) - first) / float(trace.end[-1] - trace.end[first - 1])
    return rate, recorded_times(trace)


def rows_of(name: str, problem: Problem, steps: int, folder: Path) -> list[dict[str, Any]]:
    """Return one row per policy, and one for the ratio of the two."""
    timed = time_jobs(problem, jobs=60, method="async-sgd")
    rows: list[dict[str, Any]] = []
    for policy in POLICIES:
        rate, during = measured(problem, policy, steps, folder / f"{name}-{policy}.parquet")
        rows.append(
            {
                "task": name, "what": f"{policy}, jobs/s", "predicted": predict_policy(timed, WORKERS, policy).jobs,
                "from record": predict_policy(during, WORKERS, policy).jobs, "measured": rate,
                "slower": during.mean / timed.mean,
            }
        )  # fmt: skip
    ratio = {key: rows[1][key] / rows[0][key] for key in ("predicted", "from record", "measured")}
    rows.append({"task": name, "what": "async / synchronous", **ratio, "slower": None})
    for row in rows:
        row["gap"] = row["measured"] / row["predicted"] - 1
        row["gap from record"] = row["measured"] / row["from record"] - 1
    return rows


def explained(row: dict[str, Any]) -> str:
    """Say where a large gap comes from, as far as the run itself shows it."""
    if abs(row["gap"]) <= _LARGE:
        return ""
    if row["slower"] is None:
        return "the two runs were slowed down differently: see their rows"
    if abs(row["gap from record"]) <= _LARGE:
        return f"jobs took {row['slower']:.2f} times as long in the run as alone, where nothing else used the cores"
    return (
        f"jobs took {row['slower']:.2f} times as long in the run as alone, which leaves {row['gap from record']:+.0%}"
    )


@dataclass(frozen=True)
class Command:
    """Predict and measure, with two real workers; takes a minute or two.

    Example: python benchmarks/plan.py --out docs/results
    """

    steps: int = 600
    """Contributions per run."""
    out: Path = Path("results")
    """Folder for the table and the records."""

    def run(self, console: Console) -> None:
        """Time, predict, train, write."""
        whole_number("steps", self.steps, least=20)
        writable(self.out)
        load = os.getloadavg()[0]
        records = self.out / "records"
        records.mkdir(exist_ok=True)
        text = Text(width=32, layers=2, heads=4, lengths=(32, 64, 128, 256), evaluated=256)
        rows = []
        for name, problem in (("sleeping", sleeping()), ("text", text)):
            print_text(console, f"{name}: timing, then {self.steps} contributions of each kind")
            rows += rows_of(name, problem, self.steps, records)
        heads = ["task", "what", "predicted", "measured", "gap", "from the record", "gap", "why"]
        cells = [
            [
                row["task"], row["what"], f"{row['predicted']:.3g}", f"{row['measured']:.3g}", f"{row['gap']:+.0%}",
                f"{row['from record']:.3g}", f"{row['gap from record']:+.0%}", explained(row),
            ]
            for row in rows
        ]  # fmt: skip
        words = (
            f"Predicted from 60 jobs timed alone in one process, and from the durations of the measured run itself; "
            f"measured with {WORKERS} worker processes and the server on {os.cpu_count()} cores. The load average was "
            f"{load:.1f} before the start{', so other programs ran: only the ratios mean something' * (load > 0.5)}. "
            f"Gaps above {_LARGE:.0%} have a reason in the last column."
        )
        command = f"python benchmarks/plan.py --steps {self.steps}"
        data = {"load": load, "rows": rows}
        path = write_page(self.out, "plan", "predictions beside measurements", [Part(heads, cells, words=words)],
                          command, data)  # fmt: skip
        for record in records.iterdir():
            record.unlink()
        records.rmdir()
        print_text(console, path.read_text())
        print_text(console, f"Written to {path}")


if __name__ == "__main__":
    sys.exit(run(Command, "python benchmarks/plan.py", Command.__doc__ or ""))
