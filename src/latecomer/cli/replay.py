"""``latecomer replay``: a recorded run again. Its options are those of every command that replays."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from .._util.suggest import unknown
from ._options import Imports, Pairs, hyper_parameters, import_all, pairs
from ._output import Json, show
from .train import load_task

if TYPE_CHECKING:
    from rich.console import Console

    from ..training import Replayed

__all__ = ["ReplayCommand", "ReplayOptions"]


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """What to replay, and how."""

    record: tyro.conf.Positional[Path]
    """The trace that train or fit recorded."""
    task: str | None = None
    """The task of the run: a Python file and a name in it."""
    problem: str | None = None
    """Or the name of a problem of the library."""
    problem_set: Pairs = ()
    """Arguments of the problem, as name=value."""
    method: str | None = None
    """Another method than the recorded one."""
    set: Pairs = ()
    """Hyper-parameters that differ from the recorded ones, as name=value; the others stay as they were recorded."""
    evaluate_every: int | None = None
    """Arrivals between evaluations; as in the recorded run if left out."""
    imports: Imports = ()
    """A Python file that registers methods of your own; may be repeated."""
    device: str | None = None
    """Where gradients are computed; the recorded kind of device, if this machine has one, if left out."""
    server_device: str | None = None
    """Where the parameters are; likewise."""

    def load_problem(self) -> Any:
        """Return the task or problem that was trained."""
        import_all(self.imports)
        if (self.task is None) == (self.problem is None):
            raise ValueError("name what was trained: either --task script.py:task, or --problem with a name")
        if self.task is not None:
            return load_task(self.task)
        from ..problems import PROBLEMS

        if self.problem not in PROBLEMS:
            raise ValueError(unknown("problem", self.problem, PROBLEMS))
        return PROBLEMS[self.problem](**pairs(self.problem_set, "--problem-set"))

    def replay(self, problem: Any, console: Console) -> Replayed:
        """Replay the record with these options."""
        from ..training import replay

        return replay(
            self.record, problem, method=self.method, evaluate_every=self.evaluate_every, progress=console,
            device=self.device, server_device=self.server_device, **self._options(),
        )  # fmt: skip

    def _options(self) -> dict[str, Any]:
        """Return what --set says; another method also gets the defaults of train for what the record lacks."""
        from ..optim import METHODS

        given = pairs(self.set)
        if self.method not in METHODS:
            return given
        from ..trace import Trace
        from ..training.record import read_record

        _, about = read_record(self.record, Trace.load(self.record))
        recorded = {name for group in about.get("param_groups", ()) for name in group["options"]}
        recorded |= about.get("options", {}).keys()
        defaults = hyper_parameters(str(self.method), ())
        return {name: value for name, value in defaults.items() if name not in recorded} | given


@dataclass(frozen=True, kw_only=True)
class ReplayCommand(ReplayOptions):
    """Replay a recorded run: the same bits, or another method on exactly the same schedule.

    Example: latecomer replay run.parquet --task path/to/script.py:task --method catch-up
    """

    json: Json = False
    """Print the verdict and the last evaluation as JSON on stdout, and everything else on stderr."""

    def run(self, console: Console) -> None:
        """Replay, print the verdict."""
        found = self.replay(self.load_problem(), console)
        final = {name: value for name, value in found.run.final.items() if isinstance(value, (int, float))}
        last = ", ".join(f"{name} {value:,.6g}" for name, value in final.items())
        data = {"method": found.run.method, "verdict": found.verdict, "difference": found.difference, "final": final}
        data["diverged_at"] = found.run.diverged_at
        show(console, f"{found.verdict}\n{last}", data)
