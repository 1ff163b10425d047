"""How a command line runs: parse, call, and turn whatever goes wrong into one sentence and an exit code."""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr
from typing import Any

import tyro
from rich.console import Console

from .._util.files import UnwritableError

__all__ = ["run"]


def _parse(command: Any, prog: str, description: str, argv: Sequence[str]) -> Any:
    """Return the command; what cannot be parsed is one sentence, as everything else that is wrong."""
    complaint = io.StringIO()
    try:
        with redirect_stderr(complaint):
            return tyro.cli(
                command,
                prog=prog,
                description=description,
                args=argv or ["--help"],
                config=(tyro.conf.OmitSubcommandPrefixes,),
            )
    except SystemExit as stop:
        if stop.code != 2:
            raise
        lines = [line.strip("│╭╮╰╯ \n") for line in complaint.getvalue().splitlines()[1:]]
        rule = next((i for i, line in enumerate(lines) if line.startswith("──")), len(lines))
        told = " ".join(line for line in lines[:rule] if line)
        shown = " ".join([prog, *itertools.takewhile(str.isalpha, argv[:2])])
        words = f"{told.rstrip('.')} (see {shown} --help)"
        raise ValueError(words[:1].lower() + words[1:]) from None


def run(command: Any, prog: str, description: str, argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 2 with one sentence on bad input, or 130 after Ctrl-C.

    Args:
        command: A dataclass with a method ``run(console)``, or a union of such, for tyro.
        prog: What the user typed.
        description: What ``--help`` begins with.
        argv: The arguments; those of the process by default.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    try:
        _parse(command, prog, description, argv).run(Console())
    except OSError as error:
        verb = "write" if isinstance(error, UnwritableError) else "open"
        what = f"cannot {verb} {error.filename}: " if error.filename else ""
        print(f"{prog}: {what}{error.strerror or error}", file=sys.stderr)
        return 2
    except MemoryError as error:
        print(f"{prog}: this needs more memory than there is{f': {error}' if str(error) else ''}", file=sys.stderr)
        return 2
    except (ValueError, TypeError, ImportError) as error:  # an extra that is not installed is named in the sentence
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{prog}: interrupted", file=sys.stderr)
        return 130
    return 0
