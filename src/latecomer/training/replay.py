"""Replay a recorded run in one process: to the same bits, or with another method on the same schedule."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from .._util.checks import plain_numbers
from .._util.naming import stable_name
from ..core.callbacks import ProgressLike
from ..core.devices import check_available, device_kind
from ..core.flat import FlatModule, digest
from ..core.gradient import one_thread
from ..core.groups import Arrangement, NamedGroup, ParamGroups, named_groups
from ..core.result import Run
from ..core.state import hyper_parameters
from ..core.structure import first_difference, structure
from ..delays.measured import check_durations
from ..optim import METHODS, Method, MethodLike, as_method
from ..policy import POLICIES, Policy, PolicyLike, as_policy
from ..problems.base import Problem
from ..simulation import check_problem, simulate
from ..trace import Trace
from .record import as_recorded, read_record
from .task import Task

__all__ = ["Replayed", "check_task", "replay"]


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
    method: MethodLike | None = None,
    policy: PolicyLike | None = None,
    evaluate_every: int | None = None,
    progress: ProgressLike = False,
    scheduler: Callable[[Any], Any] | None = None,
    param_groups: ParamGroups | None = None,
    device: str | torch.device | None = None,
    server_device: str | torch.device | None = None,
    **options: Any,
) -> Replayed:
    """Replay a recorded run, with its own method or another one on the same schedule.

    Args:
        record: The trace that ``fit(record=...)`` wrote.
        problem: The task or problem of the run.
        method: A method other than the recorded one; it keeps recorded hyper-parameters of the same name. One whose
            policy would have made another schedule is refused, unless ``policy`` is given. The recorded one again if it
            was given to `fit` as a class or a function, which no record can hold.
        policy: The policy of the run, if it is neither in `latecomer.policy.POLICIES` nor the recorded method's own.
        evaluate_every: Arrivals between evaluations; by default as in the recorded run. Where the record does not say,
            only the start and the end are evaluated.
        progress: True or a rich `Console` to show a line of progress, or a function of (arrivals so far, total).
        scheduler: The learning-rate scheduler that was given to `fit`; not needed if the task has its own.
        param_groups: Other param groups than the recorded ones. Another method keeps the recorded groups, and of their
            options those that it has too.
        device: Where gradients are computed. By default the kind of device that the workers had, if this machine has
            one, else the CPU. On another kind the result is measured against the recorded one, not promised.
        server_device: Where the parameters are, likewise.
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
    rule = _method(recorded if method is None else method, path)
    kept = dict(about.get("options", {}))
    # By their text, as they were recorded: a tensor of several elements has no truth value.
    passed = as_recorded(plain_numbers(options))
    same = rule.name == recorded and all(repr(kept.get(name)) == repr(value) for name, value in passed.items())
    seed = int(about.get("seed", trace.header.seed))
    decides = _policy(trace, policy, about)
    if policy is None and (rule.name != recorded or rule.policy_options(options)):
        _check_schedule(rule, _workers(trace, about), decides, {**kept, **options}, path, trace)
        options = {name: value for name, value in options.items() if name not in rule.policy_options(options)}
    # The policy is made here, so its options are not passed on. Another method keeps those that it has too.
    of_policy, rule = rule.policy_options(kept), replace(rule, policy=None)
    known = kept if rule.name == recorded else rule.arguments
    given = {key: value for key, value in kept.items() if key in known and key not in of_policy} | options
    own_groups = _groups(about, rule, same_rule=rule.name == recorded)
    groups = own_groups if param_groups is None else param_groups
    if isinstance(problem, Task):
        scheduler = scheduler or problem.scheduler
    if trace.header.groups != ("all",) and len(trace.header.groups) != problem.groups:
        raise ValueError(
            f"{path.name} is the record of another task: it has {len(trace.header.groups)} groups, this one "
            f"{problem.groups}"
        )
    model = FlatModule(problem.model(seed))
    if param_groups is not None:
        wanted = [group.as_json() for group in named_groups(model, param_groups)]
        same = same and about.get("param_groups") == as_recorded(wanted)
    differs_at_start = "start" in about and digest(model.x) != about["start"]
    other_model = first_difference(str(about["model"]), structure(model.module)) if "model" in about else ""
    if same and x is not None and x.shape != model.x.shape:
        why = other_model or f"the recorded model has {x.numel()} parameters, this one {model.x.numel()}"
        raise ValueError(f"{path.name} is the record of another task: {why}")
    places = [
        _device(about.get("devices", ["cpu"]), device),
        _device([about.get("server_device", "cpu")], server_device),
    ]
    with one_thread(int(about.get("threads", 1))):
        run = simulate(
            problem,
            rule,
            trace,
            seed=seed,
            policy=decides,
            evaluate_every=about.get("evaluate_every", len(trace)) if evaluate_every is None else evaluate_every,
            progress=progress,
            scheduler=scheduler,
            param_groups=groups,
            bf16=bool(about.get("bf16", False)),
            device=places[0],
            server_device=places[1],
            **given,
        )
    if x is None or not same:
        ended = "" if run.diverged_at is None else f" It diverged and ended at arrival {run.diverged_at:,}."
        return Replayed(run, recorded, None, f"{rule.name} was replayed on the schedule of {path.name}.{ended}")
    arrangement = Arrangement(model, rule, groups)
    arrangement.optimizer(given)  # which decides the order of its parameters
    found = arrangement.joined(run.server.parameters).cpu()
    if torch.equal(found, x):
        return Replayed(run, recorded, 0.0, f"{rule.name} lands on the same parameters, bit for bit.")
    difference = float((found.double() - x.double()).abs().max())
    reason = other_model or (
        "it starts from other parameters"
        if differs_at_start
        else _difference_reason(about, problem, scheduler, run, rule, places)
    )
    verdict = f"{rule.name} lands {difference:.3g} away from the recorded parameters (largest difference); {reason}."
    return Replayed(run, recorded, difference, verdict)


def check_task(record: str | os.PathLike[str], problem: Problem) -> str:
    """Raise if this cannot be the task of a recorded run; return a doubt as a sentence, empty if there is none."""
    check_problem(problem)
    path = Path(record)
    trace = Trace.load(path)
    _, about = read_record(path, trace)
    model = FlatModule(problem.model(int(about.get("seed", trace.header.seed))))
    difference = first_difference(str(about["model"]), structure(model.module)) if "model" in about else ""
    if difference:
        raise ValueError(f"{path.name} is the record of another task: {difference}")
    if "start" in about and digest(model.x) != about["start"]:
        return "The task starts from other parameters than the recorded run, so the two cannot be compared exactly."
    return ""


def _groups(about: dict[str, Any], rule: Method, same_rule: bool) -> list[NamedGroup] | None:
    """Return the recorded param groups; for another method, with the options that it has too."""
    recorded = about.get("param_groups")
    if recorded is None:
        return None
    known = None if same_rule or not rule.takes_options else rule.arguments
    return [
        NamedGroup(tuple(group["names"]), {k: v for k, v in group["options"].items() if known is None or k in known})
        for group in recorded
    ]


def _check_schedule(
    rule: Method, workers: int, decides: Policy, options: dict[str, Any], path: Path, trace: Trace
) -> None:
    """Raise if a method's policy would have made another schedule: a replay keeps the recorded one."""
    if rule.policy is None:
        return
    own = as_policy(rule.policy, workers, rule.policy_options(options))
    if repr(own) == repr(decides):
        return
    remedy = (
        "Simulate it on the recorded durations instead, with latecomer.delays.MeasuredDurations.of(trace), and "
        "task=task in it if the task has a group_fn"
    )
    try:
        check_durations(trace)
    except ValueError as error:  # so these durations would be refused too
        remedy = f"It cannot be simulated on the recorded durations either. {error}"
    raise ValueError(
        f"{rule.name} decides by {own!r}, and {path.name} is a schedule of {decides!r}, which a replay keeps. {remedy}"
    )


def _device(recorded: list[str], given: Any) -> str | torch.device:
    """Return the device of a replay: the one that was passed, or else one of the recorded kind."""
    if given is not None:
        return given  # type: ignore[no-any-return]
    kind = recorded[0].split()[0] if len(recorded) == 1 else "cpu"
    try:
        check_available("device", kind)
    except (RuntimeError, ValueError):
        return "cpu"
    return kind


def _difference_reason(
    about: dict[str, Any], problem: Problem, scheduler: Any, run: Run, rule: Method, places: list[Any]
) -> str:
    here = [device_kind(torch.device(place)) for place in places]
    recorded = [" and ".join(about.get("devices", ["cpu"])), about.get("server_device", "cpu")]
    for what, there, now in zip(("workers", "server"), recorded, here, strict=True):
        if there != now:
            return f"it was recorded with {what} on {there}, and replayed on {now}"
    policy = repr(run.server.policy)
    if about.get("policy") not in (None, policy):
        return f"it was recorded with policy {about['policy']}, and replayed with {policy}"
    made = hyper_parameters(rule([FlatModule(problem.model(0)).x])) if about.get("optimizer") else None
    if about.get("optimizer") != made:
        return f"it was recorded with optimizer {about['optimizer']}, and replayed with {made}"
    if about.get("scheduler") != stable_name(scheduler):
        return f"it was recorded with scheduler {about.get('scheduler')}, and replayed with {stable_name(scheduler)}"
    if about.get("problem") != repr(problem):
        return f"the recorded task was {about.get('problem')}, this is {problem!r}"
    if about.get("torch") != torch.__version__:
        return f"it was recorded with torch {about.get('torch')}, this is {torch.__version__}"
    return "it ran on another machine, or the task is another one or draws unseeded random numbers"


def _method(method: MethodLike | None, path: Path) -> Method:
    """Return the method of a replay: the one that was passed, or else the recorded one by its name."""
    if method is None:
        raise ValueError(f"There is no {path.with_suffix('.safetensors').name} beside {path}: pass method=")
    if isinstance(method, str) and method not in METHODS and "." in method:
        raise ValueError(
            f"{path.name} was recorded with {method}, a class or function that no record can hold: pass method= again"
        )
    try:
        return as_method(method)
    except ValueError as error:
        raise ValueError(
            f"{error}; a method of your own is known once the file that registers it is imported"
        ) from None


def _workers(trace: Trace, about: dict[str, Any]) -> int:
    return int(about.get("workers", trace.header.workers))


def _policy(trace: Trace, policy: PolicyLike | None, about: dict[str, Any]) -> Policy:
    """Return the policy of a recorded run: the one that was passed, one of the library, or the recorded method's."""
    name, workers = trace.header.policy, _workers(trace, about)
    if policy is not None or name in POLICIES:
        options = about.get("policy_options", {}) if policy is None else None
        return as_policy(POLICIES[name] if policy is None else policy, workers, options)
    recorded = METHODS.get(about.get("method", ""))
    if recorded is not None and recorded.policy is not None:
        found = as_policy(recorded.policy, workers, recorded.policy_options(about.get("options", {})))
        if found.name == name:
            return found
    raise ValueError(f"The trace was made with policy {name!r}, which is not one of the library's: pass policy=")
