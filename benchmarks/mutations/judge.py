"""Makes mutations and judges what becomes of them."""

from __future__ import annotations

import contextlib
import faulthandler
import linecache
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import latecomer as lc

from .arguments import argument_targets
from .files import file_targets
from .target import RefusedError, Target

__all__ = ["BAD", "GOOD", "HEADS", "Finding", "Hang", "counts", "limited", "one", "run"]

GOOD = ("same", "warned", "accepted", "refused")
BAD = ("raw", "different", "silent", "hang")
HEADS = ["target", *GOOD, *BAD]
SECONDS = 20.0
OURS = str(Path(lc.__file__).parent)


class Hang(BaseException):
    """A mutation that takes too long."""


@dataclass
class Finding:
    """What became of a mutation."""

    number: int
    target: str
    outcome: str
    what: str
    detail: str = ""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `Hang` after so many seconds; if that does not help, end the process with a traceback."""

    def late(*_: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(6 * seconds, exit=True)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        faulthandler.cancel_dump_traceback_later()


def is_ours(error: BaseException) -> bool:
    """Whether the library raised it, on purpose and in one line: its last frame is a raise statement of ours."""
    if not isinstance(error, (ValueError, TypeError, OSError, ImportError)) or "\n" in str(error):
        return False
    frame = traceback.extract_tb(error.__traceback__)[-1]
    line = linecache.getline(frame.filename, frame.lineno or 0).strip()
    # A file that is not there, or cannot be opened, is named by the system's own error.
    return (frame.filename.startswith(OURS) and line.startswith("raise")) or (
        isinstance(error, OSError) and error.filename
    )


def one(number: int, seed: int, all_targets: list[Target], folder: Path) -> Finding:
    """Make a mutation and see what becomes of it."""
    rng = random.Random(f"{seed} {number}")
    target = rng.choices(all_targets, [each.weight for each in all_targets])[0]
    place = folder / f"mutation-{number}"
    place.mkdir()
    what, detail = "", ""
    try:
        with limited(SECONDS), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            what, use = target.mutate(rng, place)
            found = use()
            if target.expected is None:
                outcome = "accepted"
            elif (
                repr(found) if isinstance(target.expected, str) and not isinstance(found, str) else found
            ) != target.expected:
                outcome = "silent" if found == "silent" else "different"
            else:
                outcome = "warned" if caught else "same"
    except Hang:
        outcome = "hang"
    except RefusedError as error:
        outcome, detail = "refused", str(error)
    except BaseException as error:
        outcome, detail = "refused" if is_ours(error) else "raw", f"{type(error).__name__}: {error}"
        if outcome == "raw":
            frame = traceback.extract_tb(error.__traceback__)[-1]
            detail += f" ({os.path.relpath(frame.filename)}, line {frame.lineno})"
    finally:
        shutil.rmtree(place, ignore_errors=True)
    target.counts[outcome] += 1
    return Finding(number, target.name, outcome, what, detail)


def run(count: int, seed: int = 0, only: int | None = None) -> tuple[list[Finding], list[Target]]:
    """Make mutations; return all findings and the counts by target."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        all_targets = [*file_targets(folder), *argument_targets(folder)]
        numbers = range(count) if only is None else [only]
        show = sys.stderr.isatty()
        findings = []
        for number in numbers:
            findings.append(one(number, seed, all_targets, folder))
            if show and number % 100 == 99:
                print(f"\r{number + 1} of {count}", end="", file=sys.stderr)
        return findings, all_targets


def counts(all_targets: list[Target]) -> list[list[Any]]:
    """Return the rows of the table: how often each outcome came, by target and in all."""
    total: Counter[str] = sum((each.counts for each in all_targets), Counter())
    named = [*((each.name, each.counts) for each in all_targets), ("all", total)]
    return [[name, *(found[outcome] for outcome in GOOD + BAD)] for name, found in named]
