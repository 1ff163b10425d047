"""``latecomer report``: one offline page of a recorded run, beside another method on the same arrivals if asked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._util.files import check_distinct, writable_file
from ._output import Json, print_text, show
from ._progress import working
from .replay import ReplayOptions

if TYPE_CHECKING:
    from rich.console import Console

    from ..monitor.view import RunView

__all__ = ["ReportCommand"]

_PAPER = ("mnist", "cifar10", "all")


@dataclass(frozen=True, kw_only=True)
class ReportCommand(ReplayOptions):
    """Write a page of a recorded run: workers over time, delays, influence, loss, throughput, faults.

    With --task (or --problem) and --method, another method is replayed on the same arrivals and shown beside it.

    Example: latecomer report run.parquet --task path/to/script.py:task --method ordered-momentum
    """

    out: Path | None = None
    """The page; run.html beside run.parquet if left out."""
    json: Json = False
    """Print what the page says of the run as JSON on stdout, and everything else on stderr."""

    def run(self, console: Console) -> None:
        """Read, replay if asked, write."""
        if str(self.record) in _PAPER and not self.record.exists():
            raise ValueError(
                f"there is no 'latecomer report {self.record}' any more: write latecomer reproduce {self.record} "
                "--from-store"
            )
        from ..monitor import report
        from ..monitor.view import RunView
        from ..training.record import beside
        from ..training.replay import check_task

        if self.record.suffix == ".safetensors":
            raise ValueError(f"{self.record} is not a record of a run: pass the .parquet file")
        out = self.record.with_suffix(".html") if self.out is None else self.out
        check_distinct({"the record": self.record, "its parameters": beside(self.record), "--out": out}, {})
        view, other, remark = RunView.of_record(self.record), None, ""
        if self._replays:
            problem = self.load_problem()
            doubt = check_task(self.record, problem)
            writable_file(out)
            found = self.replay(problem, console)
            other = RunView.of_run(found.run)
            remark = f"{found.verdict} {doubt}".strip()
            if view.history is None and view.method:  # an older record: replay its own method, for the loss
                own = replace(self, method=None, set=()).replay(problem, console).run
                view = replace(view, history=own.history)
        writable_file(out)
        with working("Drawing", console):
            report(view, out, other, remark)
        show(console, _words(view, other, remark), {**_data(view, other), "verdict": remark or None, "page": out})
        print_text(console, f"Page written to {out}")

    @property
    def _replays(self) -> bool:
        """Whether another method is to be replayed; refuses options that would have no effect."""
        wanted = self.task is not None or self.problem is not None
        options = {
            "--method": self.method, "--set": self.set, "--evaluate-every": self.evaluate_every,
            "--problem-set": self.problem_set, "--device": self.device, "--server-device": self.server_device,
        }  # fmt: skip
        given = next((name for name, value in options.items() if value), None)
        if given is not None and not wanted:
            raise ValueError(
                f"{given} needs what was trained: add --task script.py:task, or --problem with a name, or leave "
                f"{given} out"
            )
        return wanted


def _data(view: RunView, other: RunView | None) -> dict[str, Any]:
    """Return what the page says of a run, as data: one row per group."""
    from ..trace.summary import group_rows

    found: dict[str, Any] = {"method": view.method or None, "arrivals": len(view.trace)}
    found |= {"workers": view.trace.header.workers, "seconds": view.seconds if view.clock else None}
    found["faults"] = None if view.faults is None else dict(view.faults.counts)
    found["final"] = view.last
    found["other"] = None if other is None else {"method": other.method, "final": other.last}
    weight = view.influence()
    found["rows"] = [
        {**row, "influence": None if weight is None else float(weight[group])}
        for group, row in enumerate(group_rows(view.trace))
    ]
    return found


def _words(view: RunView, other: RunView | None, remark: str) -> str:
    lines = [f"{name}: {value}" for name, value in view.summary().items()]
    if other is not None:
        lines.append(f"{other.method}: " + ", ".join(f"{name} {value:.4g}" for name, value in other.last.items()))
    return "\n".join([*lines, *([remark] if remark else [])])
