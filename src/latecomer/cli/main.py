"""The ``latecomer`` command: which commands there are, and what it says of itself."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from inspect import cleandoc
from typing import Annotated

import tyro

from .. import __version__
from ._entry import run
from .bench import BenchCommand
from .data import DataCommand
from .demo import Demo
from .reproduce import ReportCommand, ReproduceCommand
from .sweep import ListRuns, One, SweepCommand
from .theory import TheoryCommand
from .trace import TraceCommand
from .train import ReplayCommand, Train

__all__ = ["main"]


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
    | Annotated[One, tyro.conf.subcommand("run", description=_about(One))]
    | Annotated[ListRuns, tyro.conf.subcommand("runs", description=_about(ListRuns))]
    | Annotated[SweepCommand, tyro.conf.subcommand("sweep", description=_about(SweepCommand))]
    | Annotated[TheoryCommand, tyro.conf.subcommand("theory", description=_about(TheoryCommand))]
    | Annotated[Train, tyro.conf.subcommand("train", description=_about(Train))]
    | Annotated[TraceCommand, tyro.conf.subcommand("trace", description=_about(TraceCommand))]
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0, or 2 with one sentence on bad input.

    Examples:
        >>> main(["--version"])
        latecomer 0.2.0
        0
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    if argv == ["--version"]:
        print(f"latecomer {__version__}")
        return 0
    return run(Command, "latecomer", "Asynchronous training in which every late gradient gets its place.", argv)
