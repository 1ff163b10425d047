"""The ``latecomer`` command: which commands there are, by use, and how one of them is found and run.

Nothing here imports torch, and a command's module imports it only when the command runs: help starts quickly.
"""

from __future__ import annotations

import functools
import operator
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from importlib import import_module
from inspect import cleandoc
from typing import Annotated, Any

from .. import __version__
from .._util.suggest import did_you_mean

__all__ = ["COMMANDS", "Group", "main", "whole_tree"]

ABOUT = "Asynchronous training of neural networks in PyTorch, for delays that depend on the data."


@dataclass(frozen=True)
class Group:
    """Commands under one name, such as ``trace make`` and ``trace show``.

    Args:
        about: What they are for.
        commands: Where each of them is: a module of this package and a class in it.
        default: The command that runs if only the group is named.
    """

    about: str
    commands: Mapping[str, str]
    default: str = ""


COMMANDS: Mapping[str, Mapping[str, str | Group]] = {
    "Train your own model": {
        "plan": "plan.PlanCommand",
        "train": "train.Train",
        "report": "report.ReportCommand",
        "replay": "replay.ReplayCommand",
    },
    "Compare methods": {
        "demo": "demo.Demo",
        "run": "sweep.One",
        "sweep": "sweep.SweepCommand",
        "compare": "compare.Compare",
        "runs": "sweep.ListRuns",
        "reproduce": "reproduce.ReproduceCommand",
    },
    "Data and schedules": {
        "data": Group("Download datasets, and list those that are there.", {"get": "data.Get", "list": "data.List"}),
        "trace": Group("Make and inspect traces.", {"make": "trace.Make", "show": "trace.Show"}),
    },
    "Look up and measure": {
        "methods": Group(
            "List the methods, and show the rule of one of them.",
            {"list": "methods.List", "show": "methods.Show"},
            default="list",
        ),
        "theory": Group("Compute the bounds of the theorems for a problem.", {"advise": "theory.Advise"}),
        "bench": Group(
            "Test and measure real workers.", {"soak": "bench.SoakCommand", "capacity": "bench.CapacityCommand"}
        ),
        "completion": "completion.Completion",
    },
}
"""Every command by use: the place of its class, or its group of commands."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, or 2 with one sentence on bad input.

    Examples:
        >>> main(["--version"])
        latecomer 0.2.0
        0
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    if not argv or argv[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if argv[0] in ("-V", "--version"):
        print(f"latecomer {__version__}")
        return 0
    known = {name: each for section in COMMANDS.values() for name, each in section.items()}
    name, *rest = argv
    if name.startswith("-"):
        return _refused(f"there is no option {name!r} before a command", name, ["--help", "--version"])
    if name not in known:
        return _refused(f"there is no command {name!r}", name, known)
    found = known[name]
    if isinstance(found, str):
        return _run(found, f"latecomer {name}", rest)
    if rest[:1] in (["-h"], ["--help"]) or not (rest or found.default):
        print(_group_help(name, found))
        return 0
    if found.default and (not rest or rest[0].startswith("-")):
        rest = [found.default, *rest]
    see = f"latecomer {name} --help"
    if rest[0].startswith("-"):
        return _refused(f"{rest[0]!r} comes after a command: {name} {' or '.join(found.commands)}", "", (), see)
    if rest[0] not in found.commands:
        full = [f"{name} {each}" for each in found.commands]
        return _refused(f"there is no command '{name} {rest[0]}'", f"{name} {rest[0]}", full, see)
    return _run(found.commands[rest[0]], f"latecomer {name} {rest[0]}", rest[1:])


def whole_tree() -> Any:
    """Return all commands as one type, from which tyro writes completion."""
    return _union({name: each for section in COMMANDS.values() for name, each in section.items()})


def _union(commands: Mapping[str, str | Group]) -> Any:
    """Return the choice between these commands as a type."""
    import tyro

    parts: list[Any] = []
    for name, each in commands.items():
        if isinstance(each, Group):
            made, about = make_dataclass(name.capitalize(), [("command", _union(each.commands))]), each.about
        else:
            made = _class(each)
            about = _summary(made)
        parts.append(Annotated[made, tyro.conf.subcommand(name, description=about)])
    return functools.reduce(operator.or_, parts)


def _class(where: str) -> Any:
    module, _, name = where.partition(".")
    return getattr(import_module(f".{module}", __package__), name)


def _run(where: str, prog: str, argv: Sequence[str]) -> int:
    from ._entry import run

    command = _class(where)
    return run(command, prog, cleandoc(command.__doc__), argv, error_prefix="latecomer")


def _refused(what: str, name: str, known: Any, see: str = "latecomer --help") -> int:
    hint = did_you_mean(name, known)
    sentence = f"{what}{f': {hint}' if hint else ''} (see {see})"
    print(f"latecomer: {' '.join(sentence.split())}", file=sys.stderr)
    return 2


def _summary(command: type) -> str:
    """Return the first line of what a command says of itself."""
    return cleandoc(command.__doc__ or "").split("\n")[0]


def _overview() -> str:
    lines = ["usage: latecomer COMMAND [options]", "", ABOUT]
    for title, commands in COMMANDS.items():
        lines += ["", f"{title}:"]
        for name, each in commands.items():
            lines += _entry(name, each.about if isinstance(each, Group) else _summary(_class(each)))
    lines += ["", "Options:", *_entry("-h, --help", "Show this."), *_entry("-V, --version", "Print the version.")]
    return "\n".join([*lines, "", "latecomer COMMAND --help shows the options of a command, with an example."])


def _group_help(name: str, group: Group) -> str:
    commands = {each: _class(where) for each, where in group.commands.items()}
    lines = [f"usage: latecomer {name} COMMAND [options]", "", group.about, ""]
    for each, command in commands.items():
        lines += _entry(each, _summary(command) + (" (the default)" if each == group.default else ""))
    examples = [line for command in commands.values() for line in cleandoc(command.__doc__).split("\n")]
    lines += ["", *(line for line in examples if line.startswith("Example: "))]
    return "\n".join([*lines, "", f"latecomer {name} COMMAND --help shows the options of a command."])


def _entry(name: str, words: str) -> list[str]:
    """Lay out a name and what it does."""
    width = min(shutil.get_terminal_size().columns, 120)
    return textwrap.wrap(words, width, initial_indent=f"  {name:<15}", subsequent_indent=" " * 17)
