"""The ``latecomer`` command: parse, call, print."""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from . import __version__, delays
from .cli_bench import BenchCommand
from .cli_data import DataCommand
from .cli_progress import watched
from .cli_reproduce import ReportCommand, ReproduceCommand
from .cli_research import ResearchCommand
from .cli_sweep import One, Runs, SweepCommand
from .cli_theory import TheoryCommand
from .cli_train import ReplayCommand, Train
from .files import atomic, writable, writable_file
from .trace import Trace

__all__ = ["main"]


@dataclass(frozen=True)
class Demo:
    """Train the paper's methods and catch-up on bundled digits with one slow class; table, figures, page.

    Example: latecomer demo --out demo --seed 0
    """

    out: Path = Path("demo")
    """Folder for the page and its figures."""
    seed: int = 0
    """First seed."""
    seeds: int = 3
    """How many seeds; all methods share the schedule of a seed."""
    steps: int = 800
    """Updates a run."""
    processes: int = 2
    """Runs at a time."""

    def run(self, console: Console) -> None:
        """Train, print, draw."""
        from . import demo, report

        runs = demo.run_all(self.steps, self.seeds, self.seed, self.processes)
        writable(self.out)
        named = ((f"{result.method}, seed {result.seed}", result) for result in runs)
        results = list(watched(named, self.seeds * len(demo.METHOD_OPTIONS), console, "training"))
        results.sort(key=lambda result: (result.seed, result.method))
        trace = demo.make_trace(self.steps, self.seed)
        setting = f"{demo.WORKERS} workers, nines are slow, {self.steps:,} updates, {self.seeds} seeds"
        table = Table(title=f"digits, {setting}")
        table.add_column("method", no_wrap=True)
        for name in ("F1", "slow F1", "fast F1", "say of slow", "dropped", "diverged"):
            table.add_column(name, justify="right")
        for row in report.rows(results):
            numbers = [f"{row.f1:.3f}", f"{row.slow:.3f}", f"{row.fast:.3f}", f"{row.say:.2f}", f"{row.dropped:.0f}"]
            table.add_row(row.method, *numbers, f"{row.diverged} of {row.runs}")
        console.print(table)
        command = f"latecomer demo --seed {self.seed} --seeds {self.seeds} --steps {self.steps}"
        page = report.write_demo(results, trace, self.out, command)
        console.print(f"Figures in {self.out}, page: {page}", soft_wrap=True)


@dataclass(frozen=True)
class Make:
    """Make a trace of a delay model and save it.

    Example: latecomer trace make --model data-dependent --workers 7 --steps 3750 --out run.parquet
    """

    out: Path
    """File to write (Parquet)."""
    model: Literal["data-dependent", "uniform", "constant", "worker-speeds", "sample-cost"] = "data-dependent"
    """Who finishes when."""
    workers: int = 7
    """Number of workers; as many as durations are given (worker-speeds)."""
    steps: int = 3750
    """Number of arrivals."""
    seed: int = 0
    """Fixes everything that is drawn."""
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

    def run(self, console: Console) -> None:
        """Make, check, save, say so."""
        share = self.slow_share
        options: dict[str, Any] = {"exact": self.exact, "dependent": self.dependent}
        if self.durations and self.model != "worker-speeds":
            raise ValueError(f"durations belong to --model worker-speeds, not to {self.model}")
        workers = len(self.durations) or self.workers
        if self.workers not in (7, workers):
            raise ValueError(
                f"{len(self.durations)} durations are given for {self.workers} workers: leave --workers out"
            )
        model: delays.DelayModel
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
        console.print(trace.describe(), soft_wrap=True, highlight=False, markup=False)
        console.print(f"\nTrace written to {self.out}", soft_wrap=True)


@dataclass(frozen=True)
class Show:
    """Check a trace and say what is in it.

    Example: latecomer trace show run.parquet
    """

    file: tyro.conf.Positional[Path]
    """The trace."""
    figure: Path | None = None
    """Also draw who worked when, as SVG, if the trace has a clock."""
    share: float = 1.0
    """Which part of the run to draw, from its start."""

    def run(self, console: Console) -> None:
        """Load, which checks every rule, describe and draw."""
        if self.figure is not None and self.figure.suffix != ".svg":
            raise ValueError(f"Invalid figure {str(self.figure)!r} (figures are drawn as SVG: call it something.svg)")
        trace = Trace.load(self.file)
        console.print(trace.describe(), soft_wrap=True, highlight=False, markup=False)
        if self.figure is not None:
            from .report.schedule import workers

            writable_file(self.figure)
            with atomic(self.figure) as temporary:
                temporary.write_text(workers(trace, self.share))
            console.print(f"Figure written to {self.figure}", soft_wrap=True)


@dataclass(frozen=True)
class TraceCommand:
    """Make and inspect traces.

    Example: latecomer trace show run.parquet
    """

    command: (
        Annotated[Make, tyro.conf.subcommand("make", description=_about(Make))]
        | Annotated[Show, tyro.conf.subcommand("show", description=_about(Show))]
    )

    def run(self, console: Console) -> None:
        """Pass it on."""
        self.command.run(console)


def _about(command: type) -> str:
    """Return what a command's help says: its docstring without the examples for developers."""
    return cleandoc(command.__doc__ or "").split("\n\nExamples:")[0]


Command = (
    Annotated[BenchCommand, tyro.conf.subcommand("bench", description=_about(BenchCommand))]
    | Annotated[DataCommand, tyro.conf.subcommand("data", description=_about(DataCommand))]
    | Annotated[Demo, tyro.conf.subcommand("demo", description=_about(Demo))]
    | Annotated[ReplayCommand, tyro.conf.subcommand("replay", description=_about(ReplayCommand))]
    | Annotated[ReportCommand, tyro.conf.subcommand("report", description=_about(ReportCommand))]
    | Annotated[ReproduceCommand, tyro.conf.subcommand("reproduce", description=_about(ReproduceCommand))]
    | Annotated[ResearchCommand, tyro.conf.subcommand("research", description=_about(ResearchCommand))]
    | Annotated[One, tyro.conf.subcommand("run", description=_about(One))]
    | Annotated[Runs, tyro.conf.subcommand("runs", description=_about(Runs))]
    | Annotated[SweepCommand, tyro.conf.subcommand("sweep", description=_about(SweepCommand))]
    | Annotated[TheoryCommand, tyro.conf.subcommand("theory", description=_about(TheoryCommand))]
    | Annotated[Train, tyro.conf.subcommand("train", description=_about(Train))]
    | Annotated[TraceCommand, tyro.conf.subcommand("trace", description=_about(TraceCommand))]
)


def _parse(argv: Sequence[str]) -> Any:
    """Return the command; what cannot be parsed is one sentence, as everything else that is wrong."""
    complaint = io.StringIO()
    try:
        with redirect_stderr(complaint):
            return tyro.cli(
                Command,
                prog="latecomer",
                description="Asynchronous training in which every late gradient gets its place.",
                args=argv or ["--help"],
                config=(tyro.conf.OmitSubcommandPrefixes,),
            )
    except SystemExit as stop:
        if stop.code != 2:
            raise
        lines = [line.strip("│╭╮╰╯ \n") for line in complaint.getvalue().splitlines()[1:]]
        rule = next((i for i, line in enumerate(lines) if line.startswith("──")), len(lines))
        told = " ".join(line for line in lines[:rule] if line)
        command = " ".join(["latecomer", *itertools.takewhile(str.isalpha, argv[:2])])
        words = f"{told.rstrip('.')} (see {command} --help)"
        raise ValueError(words[:1].lower() + words[1:]) from None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0, or 2 with one sentence on bad input.

    Examples:
        >>> main(["--version"])
        latecomer 0.1.0
        0
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    if argv == ["--version"]:
        print(f"latecomer {__version__}")
        return 0
    try:
        _parse(argv).run(Console())
    except OSError as error:
        print(f"latecomer: cannot write {error.filename or 'the output'}: {error.strerror}", file=sys.stderr)
        return 2
    except MemoryError as error:
        print(f"latecomer: this needs more memory than there is{f': {error}' if str(error) else ''}", file=sys.stderr)
        return 2
    except (ValueError, TypeError, ImportError) as error:  # an extra that is not installed is named in the sentence
        print(f"latecomer: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("latecomer: interrupted", file=sys.stderr)
        return 130
    return 0
