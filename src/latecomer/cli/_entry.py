"""How a command line runs: parse, call, and turn whatever goes wrong into one sentence and an exit code."""

from __future__ import annotations

import dataclasses
import io
import itertools
import os
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr
from typing import Any, get_type_hints

import tyro

from .._util.files import UnwritableError
from .._util.places import user_code
from .._util.suggest import did_you_mean

__all__ = ["run"]

_INT, _FLOAT = r"invalid literal for int\(\) with base 10", "could not convert string to float"
_CHOICE = r"(.*) for argument '(.*)'\. Expected one of \((.*?),?\)"
_WORDINGS = {
    r"Error parsing (\S+): no type matching \{None\}\|INT could be instantiated from \[(.*?)\].*": (
        r"Invalid \1 value: \2 (expected a whole number)"
    ),
    r"Error parsing (\S+): no type matching \{None\}\|FLOAT could be instantiated from \[(.*?)\].*": (
        r"Invalid \1 value: \2 (expected a number)"
    ),
    r"Error parsing (\S+): Could not find valid parse for arguments: \[(.*?)\].*": r"Invalid \1 value: \2",
    r"Unrecognized options: (.*)": r"unexpected argument: \1",
    r"Missing from .+?: (\S+) (.*?)\.? \(required\)": r"\1 is missing: \2",
    rf"Error parsing (\S+): {_INT}: (.*)": r"Invalid \1 value: \2 (expected a whole number)",
    rf"Error parsing (\S+): {_FLOAT}: (.*)": r"Invalid \1 value: \2 (expected a number)",
    rf"[Ii]nvalid choice {_CHOICE}": r"Invalid \2 value: \1 (expected one of \3)",
}
"""Error messages of tyro, and the wording of this library."""


def _parse(command: Any, prog: str, description: str, argv: Sequence[str]) -> Any:
    """Return the command; what cannot be parsed is one sentence, as everything else that is wrong."""
    stderr = io.StringIO()
    try:
        with redirect_stderr(stderr):
            return tyro.cli(
                command,
                prog=prog,
                description=description,
                args=argv if argv or isinstance(command, type) else ["--help"],
                config=(tyro.conf.OmitSubcommandPrefixes,),
            )
    except SystemExit as stop:
        if stop.code != 2:
            raise
    subcommand = [] if isinstance(command, type) else itertools.takewhile(str.isalpha, argv[:1])
    see = f"(see {' '.join([prog, *subcommand])} --help)"
    options = _options(command)
    for word in (word.partition("=")[0].replace("_", "-") for word in argv if word.startswith("--") and word != "--"):
        if options and word not in options:
            hint = _as_setting(word, argv) if "--set" in options else ""
            hint = hint or did_you_mean(word, options)
            raise ValueError(f"there is no option {word!r}: {hint}".rstrip(": ") + f" {see}")
    message = _first_section(stderr.getvalue())
    for pattern, replacement in _WORDINGS.items():
        message = re.sub(pattern, replacement, message)
    raise ValueError(f"{message.rstrip('.')} {see}")


_HYPER_PARAMETERS = ("lr", "beta", "beta2", "gamma", "eps", "weight_decay", "clip", "threshold")


def _as_setting(option: str, argv: Sequence[str]) -> str:
    """Return how --set gives a hyper-parameter that was given as an option; empty if it is not a common one."""
    name = option.removeprefix("--").replace("-", "_")
    if name not in _HYPER_PARAMETERS:  # the table of methods would take seconds to import
        return ""
    place = next(i for i, word in enumerate(argv) if word.partition("=")[0].replace("_", "-") == option)
    _, equals, value = argv[place].partition("=")
    if not equals:
        value = next((word for word in argv[place + 1 : place + 2] if not word.startswith("--")), "VALUE")
    return f"did you mean --set {name}={value}?"


def _first_section(box: str) -> str:
    """Return the text of one of tyro's boxes between its title and the first rule, drawn in Unicode or in ASCII."""
    lines = [line.strip("│╭╮╰╯ ") for line in box.splitlines()[1:]]
    while lines and set(lines[0]) <= set("─-"):
        lines.pop(0)
    return " ".join(line for line in itertools.takewhile(lambda line: not line or set(line) - set("─-"), lines) if line)


def _options(command: Any) -> list[str]:
    """Return the names of a command's options; none where it is a choice of several commands."""
    if not dataclasses.is_dataclass(command):
        return []
    names = ["--help"]
    hints, extras = (get_type_hints(command, include_extras=extras) for extras in (False, True))
    for each in dataclasses.fields(command):
        said = (getattr(note, "name", None) for note in getattr(extras[each.name], "__metadata__", ()))
        name = next(filter(None, said), each.name).replace("_", "-")
        names += [f"--{name}", f"--no-{name}"] if hints[each.name] is bool else [f"--{name}"]
    return names


def _say(name: str, what: str) -> None:
    """Print an error in one line, whatever is in a user's paths and messages."""
    print(f"{name}: {' '.join(what.split())}", file=sys.stderr)


def run(
    command: Any, prog: str, description: str, argv: Sequence[str] | None = None, error_prefix: str | None = None
) -> int:
    """Run a command and return its exit code: 0, 2 with one sentence on bad input, or 130 after Ctrl-C.

    Args:
        command: A dataclass with a method ``run(console)``, or a union of such, for tyro. If it has a field ``json``
            that is true, its console is stderr and its table is JSON.
        prog: What the user typed.
        description: What ``--help`` begins with.
        argv: The arguments; those of the process by default.
        error_prefix: What error messages begin with; ``prog`` by default.
    """
    from ._output import opened

    argv = sys.argv[1:] if argv is None else list(argv)
    name = error_prefix or prog
    try:
        parsed = _parse(command, prog, description, argv)
        with opened(getattr(parsed, "json", False)) as console, user_code("Your code", among_ours=True):
            parsed.run(console)
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except OSError as error:
        verb = "write" if isinstance(error, UnwritableError) else "open"
        what = f"cannot {verb} {error.filename}: " if error.filename else ""
        _say(name, f"{what}{error.strerror or error}")
        return 2
    except MemoryError as error:
        _say(name, f"this needs more memory than there is{f': {error}' if str(error) else ''}")
        return 2
    except (ValueError, TypeError, ImportError) as error:  # an extra that is not installed is named in the sentence
        _say(name, str(error))
        return 2
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130
    return 0
