"""``latecomer trace``: make a trace of a delay model, check one, and draw it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from .._util.files import atomic, writable_file
from ._options import Pairs, pairs
from ._output import Json, print_text, show

if TYPE_CHECKING:
    from rich.console import Console

    from ..delays import DelayModel

__all__ = ["Make", "Show"]


_DRAWN, _CLOCK = ("data-dependent", "uniform"), ("worker-speeds", "sample-cost", "measured-durations")
_BELONGS = {
    "slow_share": (*_DRAWN, "constant", "worker-speeds", "sample-cost"),
    "exact": _DRAWN,
    "dependent": (*_DRAWN, "sample-cost"),
    "durations": ("worker-speeds",),
    "noise": ("worker-speeds",),
    "costs": ("sample-cost",),
    "speeds": ("sample-cost",),
    "file": ("measured-durations", "measured-delays"),
    "factor": _CLOCK,
    "network": _CLOCK,
    "server": _CLOCK,
}
"""Models that an option is about; the others refuse it."""


@dataclass(frozen=True)
class Make:
    """Make a trace of a delay model and save it.

    Example: latecomer trace make --model data-dependent --workers 7 --steps 3750 --out run.parquet
    """

    out: Path
    """File to write (Parquet)."""
    model: Literal[
        "data-dependent", "uniform", "constant", "worker-speeds", "sample-cost", "measured-durations", "measured-delays"
    ] = "data-dependent"
    """The delay model: which worker finishes when."""
    workers: int | None = None
    """Number of workers; 7, or as many as durations, speeds or a file have, if left out."""
    steps: int = 3750
    """Number of arrivals."""
    seed: int = 0
    """Seed of all random draws."""
    slow_share: float = 0.1
    """Share of slow samples (all but measured models)."""
    exact: bool = True
    """Exact slow share; the paper's literal rule otherwise (data-dependent, uniform)."""
    dependent: bool = True
    """Whether the wait depends on the sample (data-dependent, uniform, sample-cost)."""
    durations: tuple[float, ...] = ()
    """Mean duration of a job for each worker (worker-speeds); 1, 2, 3, ... if left out."""
    noise: Literal["fixed", "exponential", "uniform", "lognormal", "pareto"] = "fixed"
    """How durations vary (worker-speeds); pareto has a heavy tail."""
    costs: tuple[float, float] = (1.0, 10.0)
    """Duration of a job on a fast and on a slow sample (sample-cost)."""
    speeds: tuple[float, ...] = ()
    """Factor on the durations of each worker (sample-cost); all 1 if left out."""
    file: Path | None = None
    """A CSV file of measured durations or delays, or for measured-durations a recorded trace (.parquet)."""
    factor: str | None = None
    """A function of worker and time by which durations are multiplied, path/to/script.py:factor (models with a clock:
    worker-speeds, sample-cost, measured-durations)."""
    network: float = 0.0
    """Seconds per job on the network (models with a clock)."""
    server: float = 0.0
    """Seconds per arrival that the server is busy (models with a clock)."""
    policy: str | None = None
    """The server's policy by name; without one every arrival is an update."""
    set: Pairs = ()
    """Options of the policy as name=value, such as R=4."""
    json: Json = False
    """Print the summary as JSON on stdout, and everything else on stderr."""

    def run(self, console: Console) -> None:
        """Make, check and save the trace."""
        from ..policy import as_policy
        from ..trace.summary import summary

        for option in fields(self):
            models = _BELONGS.get(option.name, (self.model,))
            if self.model not in models and getattr(self, option.name) != option.default:
                name = option.name.replace("_", "-")
                raise ValueError(f"--{name} belongs to --model {' or '.join(models)}, not to {self.model}")
        model = self._made()
        if self.set and self.policy is None:
            raise ValueError("--set has options of a policy: name it with --policy")
        policy = as_policy(self.policy, model.workers, pairs(self.set))
        writable_file(self.out)
        trace = model.trace(self.steps, self.seed, policy)
        trace.save(self.out)
        show(console, trace.describe(), {**summary(trace), "trace": self.out})
        print_text(console, f"\nTrace written to {self.out}")

    def _made(self) -> DelayModel:
        """Return the model, with changing speeds, the network and the server around it as far as they were given."""
        from ..delays.known import model_of

        given = len(self.durations or self.speeds)
        if given and self.workers not in (None, given):
            what = "durations" if self.durations else "speeds"
            raise ValueError(f"{given} {what} are given for {self.workers} workers: leave --workers out")
        costs = {"factor": self.factor, "network": self.network, "server": self.server}
        options = self._options(given or (7 if self.workers is None else self.workers))
        model = model_of(
            self.model, options | {name: value for name, value in costs.items() if value not in (None, 0.0)}
        )
        if self.model == "measured-durations" and self.workers not in (None, model.workers):
            raise ValueError(f"{self.file} has {model.workers} workers, not {self.workers}: leave --workers out")
        return model

    def _options(self, workers: int) -> dict[str, Any]:
        """Return the arguments of the model, without the costs around it."""
        groups = {"slow_share": self.slow_share}
        match self.model:
            case "data-dependent" | "uniform":
                return {"workers": workers, "exact": self.exact, "dependent": self.dependent, **groups}
            case "constant":
                return {"workers": workers, **groups}
            case "worker-speeds":
                durations = self.durations or tuple(float(i + 1) for i in range(workers))
                return {"durations": durations, "noise": self.noise, **groups}
            case "sample-cost":
                own = {"workers": workers, "cost": self.costs, "speeds": self.speeds or None}
                return {**own, "dependent": self.dependent, **groups}
        if self.file is None:
            raise ValueError(f"--model {self.model} needs a --file with what was measured")
        return {"file": self.file} | ({"workers": self.workers} if self.model == "measured-delays" else {})


@dataclass(frozen=True)
class Show:
    """Check a trace and summarise it.

    Example: latecomer trace show run.parquet
    """

    file: tyro.conf.Positional[Path]
    """The trace."""
    figure: Path | None = None
    """Also draw a timeline of the workers, as SVG."""
    share: float = 1.0
    """Share of the run to draw, from its start."""
    json: Json = False
    """Print the summary as JSON on stdout, and everything else on stderr."""

    def run(self, console: Console) -> None:
        """Load, which checks every rule, describe and draw."""
        if self.figure is not None and self.figure.suffix != ".svg":
            raise ValueError(f"Invalid figure {str(self.figure)!r} (figures are drawn as SVG: call it something.svg)")
        from ..trace import Trace
        from ..trace.summary import summary

        if self.figure is not None:  # so that a missing extra is found before the work
            from ..report.timeline import workers
        trace = Trace.load(self.file)
        show(console, trace.describe(), summary(trace))
        if self.figure is not None:
            writable_file(self.figure)
            with atomic(self.figure) as temporary:
                temporary.write_text(workers(trace, self.share))
            print_text(console, f"Figure written to {self.figure}")
