"""Replay a recorded run in one process: to the same bits, or with another method on the same schedule."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .._util.naming import stable_name
from ..core.callbacks import ProgressLike
from ..core.flat import FlatModule, digest
from ..core.gradient import one_thread
from ..core.result import Run
from ..core.structure import first_difference, structure
from ..optim import known_method
from ..policy import POLICIES, Policy, Synchronous
from ..problems.base import Problem
from ..simulation import check_problem, simulate
from ..trace import Trace
from .record import read_record
from .task import Task

__all__ = ["Replayed", "replay"]


@dataclass(frozen=True)
class Replayed:
    """The result of a replay.

    Attributes:
        run: The run, as `latecomer.simulate` returns it.
        recorded: Name of the recorded method, or None if the record has none.
        difference: Largest difference of a parameter to the recorded run's end, 0.0 for the same bits. None if there is
            nothing to compare: the record has no final parameters, or the method or its options differ.
        verdict: The result as a sentence.

    Examples:
        >>> Replayed(None, "momentum", 0.0, "The same bits.").difference
        0.0
    """

    run: Run
    recorded: str | None
    difference: float | None
    verdict: str


def replay(
    record: str | os.PathLike[str],
    problem: Problem,
    *,
    method: str | None = None,
    evaluate_every: int | None = None,
    progress: ProgressLike = False,
    scheduler: Callable[[Any], Any] | None = None,
    **options: Any,
) -> Replayed:
    """Replay a recorded run, with its own method or another one on the same schedule.

    Args:
        record: The trace that ``fit(record=...)`` wrote.
        problem: The task or problem of the run.
        method: A method other than the recorded one; it keeps recorded hyper-parameters of the same name.
        evaluate_every: Arrivals between evaluations; by default only the start and the end are evaluated.
        progress: True or a rich `Console` to show a line of progress, or a function of (arrivals so far, total).
        scheduler: The learning-rate scheduler that was given to `fit`; not needed if the task has its own.
        **options: Hyper-parameters that differ from the recorded ones.

    Examples:
        >>> import latecomer as lc, tempfile
        >>> problem = lc.problems.quadratic()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = lc.fit(problem, lr=0.1, workers=3, engine="inline", steps=40, record=f"{folder}/run.parquet")
        ...     again = replay(run.record, problem)
        ...     other = replay(run.record, problem, method="catch-up")
        >>> again.verdict
        'balanced-catch-up lands on the same parameters, bit for bit.'
        >>> other.difference is None, other.run.method
        (True, 'catch-up')
    """
    if not isinstance(record, (str, os.PathLike)):
        raise TypeError(f"Invalid record: {record!r} (expected the name of the file that fit(record=...) wrote)")
    check_problem(problem)
    path = Path(record)
    trace = Trace.load(path)
    x, about = read_record(path, trace)
    recorded = about.get("method")
    name = recorded if method is None else method
    if name is None:
        raise ValueError(f"There is no {path.with_suffix('.safetensors').name} beside {path}: pass method=")
    same = name == recorded and not options
    seed = int(about.get("seed", trace.header.seed))
    given = dict(about.get("options", {}))
    if name != recorded:
        given = {key: value for key, value in given.items() if key in known_method(name).arguments}
    given |= options
    if isinstance(problem, Task):
        problem.seed, scheduler = trace.header.seed, scheduler or problem.scheduler
    if trace.header.groups != ("all",) and len(trace.header.groups) != problem.groups:
        raise ValueError(
            f"{path.name} is the record of another task: it has {len(trace.header.groups)} groups, this one "
            f"{problem.groups}"
        )
    model = FlatModule(problem.model(seed))
    differs_at_start = "start" in about and digest(model.x) != about["start"]
    other_model = first_difference(str(about["model"]), structure(model.module)) if "model" in about else ""
    if same and x is not None and x.shape != model.x.shape:
        why = other_model or f"the recorded model has {x.numel()} parameters, this one {model.x.numel()}"
        raise ValueError(f"{path.name} is the record of another task: {why}")
    with one_thread():
        run = simulate(
            problem,
            name,
            trace,
            seed=seed,
            policy=_policy(trace),
            evaluate_every=len(trace) if evaluate_every is None else evaluate_every,
            progress=progress,
            scheduler=scheduler,
            bf16=bool(about.get("bf16", False)),
            **given,
        )
    if x is None or not same:
        return Replayed(run, recorded, None, f"{name} on the schedule of {path.name}.")
    model.at(model.x).load_state_dict(dict(run.state))
    found = model.x.detach()
    if torch.equal(found, x):
        return Replayed(run, recorded, 0.0, f"{name} lands on the same parameters, bit for bit.")
    difference = float((found.double() - x.double()).abs().max())
    reason = "it starts from other parameters" if differs_at_start else _difference_reason(about, problem, scheduler)
    reason = other_model or reason
    verdict = f"{name} lands {difference:.3g} away from the recorded parameters (largest difference); {reason}."
    return Replayed(run, recorded, difference, verdict)


def _difference_reason(about: dict[str, Any], problem: Problem, scheduler: Any) -> str:
    if about.get("scheduler") != stable_name(scheduler):
        return f"it was recorded with scheduler {about.get('scheduler')}, and replayed with {stable_name(scheduler)}"
    if about.get("problem") != repr(problem):
        return f"the recorded task was {about.get('problem')}, this is {problem!r}"
    if about.get("torch") != torch.__version__:
        return f"it was recorded with torch {about.get('torch')}, this is {torch.__version__}"
    return "it ran on another machine, or the task is another one or draws unseeded random numbers"


def _policy(trace: Trace) -> Policy:
    name = trace.header.policy
    if name not in POLICIES:
        raise ValueError(f"The trace was made with policy {name!r}: call latecomer.simulate with that policy")
    return Synchronous(trace.header.workers) if name == "synchronous" else POLICIES[name]()
