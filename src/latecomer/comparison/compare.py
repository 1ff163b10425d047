"""A comparison from Python: `latecomer.compare`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from .._util.checks import several, whole_number
from .._util.imports import import_file
from ..experiments.store import Store
from ..experiments.sweep import run_sweep
from .plan import planned
from .results import Results, collect
from .runs import run_compared

__all__ = ["compare"]


def compare(
    methods: Sequence[str] = (),
    problems: Sequence[str] = (),
    delays: Sequence[str] = (),
    *,
    seeds: Sequence[int] = (),
    size: str = "quick",
    imports: Sequence[str] = (),
    store: str | os.PathLike[str] | None = None,
    processes: int = 1,
) -> Results:
    """Tune methods with the same budget, run them on fresh seeds, and return the time each takes to the target.

    Args:
        methods: Names of methods; all that are known by default.
        problems: Names of problems: quadratic, digits, mnist, text, cifar10; those of the size by default.
        delays: Names of delay models, in `latecomer.comparison.settings.DELAYS`; those of the size by default.
        seeds: Seeds to judge on; those of the size by default.
        size: ``"quick"`` or ``"standard"``: docs/compare.md says what they mean.
        imports: Python files that register methods.
        store: A folder for the runs, from which an interrupted comparison goes on; a temporary one by default.
        processes: Runs at a time.

    Examples:
        >>> import latecomer as lc
        >>> found = lc.compare(["async-sgd", "delay-filtered"], ["quadratic"], ["slow-samples"], seeds=[4000])
        >>> found.summary()["method"].to_list()
        ['async-sgd', 'delay-filtered']
        >>> found.summary()["wasted"].round(1).to_list()
        [0.0, 0.5]
    """
    processes = whole_number("processes", processes, least=1)
    methods, problems, delays = (
        several(name, given, "names")
        for name, given in (("methods", methods), ("problems", problems), ("delays", delays))
    )
    seeds = several("seeds", seeds, "whole numbers, such as [4000, 4001]")
    imports = several("imports", imports, "files")
    for file in imports:
        import_file(file)
    plan = planned(size, methods=methods, problems=problems, delays=delays, seeds=seeds, imports=imports)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory()) if store is None else store
        runs = Store(Path(folder))
        for _ in run_sweep(plan.tuning(), runs, processes, run=run_compared):
            pass
        for _ in run_sweep(plan.judging(runs), runs, processes, run=run_compared):
            pass
        return collect(plan, runs)
