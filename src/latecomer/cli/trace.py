"""``latecomer trace``: make a trace of a delay model, check one, and draw it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro

from .._util.files import atomic, writable_file
from ._output import Json, print_text, show

if TYPE_CHECKING:
    from rich.console import Console

    from ..delays import DelayModel

__all__ = ["Make", "Show"]


@dataclass(frozen=True)
class Make:
    """Make a trace of a delay model and save it.

    Example: latecomer trace make --model data-dependent --workers 7 --steps 3750 --out run.parquet
    """

    out: Path
    """File to write (Parquet)."""
    model: Literal["data-dependent", "uniform", "constant", "worker-speeds", "sample-cost"] = "data-dependent"
    """The delay model: which worker finishes when."""
    workers: int = 7
    """Number of workers; as many as durations are given (worker-speeds)."""
    steps: int = 3750
    """Number of arrivals."""
    seed: int = 0
    """Seed of all random draws."""
    slow_share: float = 0.1
    """Share of slow samples."""
    exact: bool = True
    """Exact slow share; the paper's literal rule otherwise (data-dependent, uniform)."""
    dependent: bool = True
    """Whether the wait depends on the sample (data-dependent, uniform, sample-cost)."""
    durations: tuple[float, ...] = ()
    """Mean duration of a job for each worker (worker-speeds); 1, 2, 3, ... if left out."""
    noise: Literal["fixed", "exponential", "uniform", "lognormal"] = "fixed"
    """How durations vary (worker-speeds)."""
    costs: tuple[float, float] = (1.0, 10.0)
    """Duration of a job on a fast and on a slow sample (sample-cost)."""
    json: Json = False
    """Print the summary as JSON on stdout, and everything else on stderr."""

    def run(self, console: Console) -> None:
        """Make, check and save the trace."""
        from .. import delays
        from ..trace.summary import summary

        share = self.slow_share
        options: dict[str, Any] = {"exact": self.exact, "dependent": self.dependent}
        if self.durations and self.model != "worker-speeds":
            raise ValueError(f"durations belong to --model worker-speeds, not to {self.model}")
        workers = len(self.durations) or self.workers
        if self.workers not in (7, workers):
            raise ValueError(
                f"{len(self.durations)} durations are given for {self.workers} workers: leave --workers out"
            )
        model: DelayModel
        match self.model:
            case "data-dependent":
                model = delays.DataDependent(workers, share, **options)
            case "uniform":
                model = delays.Uniform(workers, share, **options)
            case "constant":
                model = delays.Constant(workers, share)
            case "worker-speeds":
                durations = self.durations or tuple(float(i + 1) for i in range(workers))
                model = delays.WorkerSpeeds(durations, self.noise, slow_share=share)
            case "sample-cost":
                model = delays.SampleCost(workers, self.costs, share, dependent=self.dependent)
        writable_file(self.out)
        trace = model.trace(self.steps, self.seed)
        trace.save(self.out)
        show(console, trace.describe(), {**summary(trace), "trace": self.out})
        print_text(console, f"\nTrace written to {self.out}")


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
