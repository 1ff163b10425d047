"""What is to be run: one run, and a sweep of many, as plain data that round-trips through TOML."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import tomli_w
import torch

from .. import delays, problems
from .._util.checks import whole_number
from .._util.suggest import unknown as unknown_name
from ..optim import METHODS
from ..problems.base import Problem
from ..trace import Trace

__all__ = ["DELAYS", "Grid", "RunSpec", "Sweep"]

FORMAT = 1
"""Part of every key: it goes up when the same spec no longer means the same numbers."""

DELAYS = {
    "data-dependent": delays.DataDependent,
    "uniform": delays.Uniform,
    "constant": delays.Constant,
    "worker-speeds": delays.WorkerSpeeds,
    "sample-cost": delays.SampleCost,
}
"""Delay models by the name they have in a spec."""


@dataclass(frozen=True)
class RunSpec:
    """One run: everything that decides its numbers, and nothing else.

    Args:
        problem: Name of the problem.
        method: Name of the method.
        delays: Name of the delay model.
        steps: Arrivals.
        seed: Initialises the model and draws the schedule, so methods share the schedule of a seed.
        evaluate_every: Arrivals between evaluations.
        problem_options: Arguments of the problem.
        options: Hyper-parameters of the method.
        delay_options: Arguments of the delay model.

    Examples:
        >>> run = RunSpec("quadratic", "momentum", "uniform", 50, delay_options={"workers": 3}, options={"lr": 0.1})
        >>> run.key == RunSpec(**run.as_dict()).key, len(run.key)
        (True, 64)
    """

    problem: str
    method: str
    delays: str
    steps: int
    seed: int = 0
    evaluate_every: int = 50
    problem_options: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    delay_options: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {name: dict(v) if isinstance(v, Mapping) else v for name, v in asdict(self).items()}

    @property
    def key(self) -> str:
        """Its address in the store: a fingerprint of what it says."""
        said = self.as_dict()
        said["options"] = {name: _number(value) for name, value in said["options"].items()}
        text = json.dumps({"format": FORMAT, **said}, sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def check(self) -> None:
        """Raise a sentence if the run cannot be made; the problem's data is not touched."""
        _known("problem", self.problem, problems.PROBLEMS)
        _known("method", self.method, METHODS)
        _known("delay model", self.delays, DELAYS)
        whole_number("steps", self.steps, least=1)
        whole_number("seed", self.seed)
        whole_number("evaluate_every", self.evaluate_every, least=1)
        if "data_dir" in self.problem_options:
            raise ValueError("Where data lies does not belong into a run: use --data-dir, or set LATECOMER_DATA")
        _fitting(self.problem, problems.PROBLEMS[self.problem], self.problem_options)
        _fitting(f"{self.delays} delays", DELAYS[self.delays], self.delay_options)
        METHODS[self.method]([torch.nn.Parameter(torch.zeros(1))], **self.options)
        self.make_trace(steps=1)

    def make_problem(self) -> Problem:
        """Make the problem."""
        make: Any = problems.PROBLEMS[self.problem]
        made: Problem = make(**self.problem_options)
        return made

    def make_trace(self, steps: int | None = None) -> Trace:
        """Make the schedule."""
        make: Any = DELAYS[self.delays]
        trace: Trace = make(**self.delay_options).trace(self.steps if steps is None else steps, self.seed)
        return trace


@dataclass(frozen=True)
class Grid:
    """One method and the values its hyper-parameters take: all combinations are run.

    Examples:
        >>> len(list(Grid("momentum", {"lr": [0.1, 0.01], "beta": [0.1, 0.05, 0.01]}).combinations()))
        6
    """

    method: str
    values: Mapping[str, list[Any]]

    def combinations(self) -> list[dict[str, Any]]:
        """Return every combination of values."""
        for name, values in self.values.items():
            if not isinstance(values, list) or not values:
                raise ValueError(f"The grid of {self.method} needs a list of values for {name}, got {values!r}")
        names = list(self.values)
        return [dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*self.values.values())]


@dataclass(frozen=True)
class Sweep:
    """Many runs: methods and their grids on one problem, one delay model and some seeds.

    Args:
        name: For people and files.
        problem: Name of the problem.
        delays: Name of the delay model.
        steps: Arrivals a run.
        seeds: Seeds; all methods share the schedule of a seed.
        grids: Methods and their values.
        evaluate_every: Arrivals between evaluations.
        problem_options: Arguments of the problem.
        delay_options: Arguments of the delay model.

    Examples:
        >>> sweep = Sweep("small", "quadratic", "uniform", steps=50, seeds=(0, 1), delay_options={"workers": 3},
        ...               grids=(Grid("momentum", {"lr": [0.1, 0.01]}), Grid("async-sgd", {"lr": [0.1]})))
        >>> len(sweep.runs()), Sweep.from_toml(sweep.to_toml()) == sweep
        (6, True)
    """

    name: str
    problem: str
    delays: str
    steps: int
    seeds: tuple[int, ...]
    grids: tuple[Grid, ...]
    evaluate_every: int = 50
    problem_options: Mapping[str, Any] = field(default_factory=dict)
    delay_options: Mapping[str, Any] = field(default_factory=dict)

    def runs(self) -> list[RunSpec]:
        """Return every run, seed by seed, each checked."""
        common = RunSpec(
            problem=self.problem,
            method="",
            delays=self.delays,
            steps=self.steps,
            evaluate_every=self.evaluate_every,
            problem_options=dict(self.problem_options),
            delay_options=dict(self.delay_options),
        )
        runs = [
            replace(common, method=grid.method, options=options, seed=seed)
            for seed in self.seeds
            for grid in self.grids
            for options in grid.combinations()
        ]
        if not runs:
            raise ValueError(f"The sweep {self.name!r} has no runs: it needs seeds and grids")
        for run in runs:
            if run.seed == self.seeds[0]:
                run.check()
        return list({run.key: run for run in runs}.values())

    def as_dict(self) -> dict[str, Any]:
        """Return it as it is written: in dicts, lists, words and numbers."""
        return {
            "name": self.name,
            "problem": {"name": self.problem, **self.problem_options},
            "delays": {"name": self.delays, **self.delay_options},
            "steps": self.steps,
            "evaluate_every": self.evaluate_every,
            "seeds": list(self.seeds),
            "grid": [{"method": grid.method, **grid.values} for grid in self.grids],
        }

    def to_toml(self) -> str:
        """Write it as TOML."""
        return tomli_w.dumps(self.as_dict())

    @classmethod
    def from_toml(cls, text: str) -> Sweep:
        """Read it from TOML; what is missing or unknown gets one sentence."""
        try:
            plain = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"The spec is no TOML: {error}") from None
        known = {"name", "problem", "delays", "steps", "evaluate_every", "seeds", "grid"}
        unknown, missing = plain.keys() - known, known - {"evaluate_every"} - plain.keys()
        if unknown or missing:
            what = f"does not know {sorted(unknown)}" if unknown else f"lacks {sorted(missing)}"
            raise ValueError(f"The spec {what} (it has {', '.join(sorted(known))})")
        try:
            problem, model = dict(plain["problem"]), dict(plain["delays"])
            grids = tuple(Grid(dict(g)["method"], {k: v for k, v in g.items() if k != "method"}) for g in plain["grid"])
            return cls(
                **{key: plain[key] for key in ("name", "steps", "evaluate_every") if key in plain},
                problem=problem.pop("name"),
                problem_options=problem,
                delays=model.pop("name"),
                delay_options=model,
                seeds=tuple(whole_number("seed", seed) for seed in plain["seeds"]),
                grids=grids,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"The spec cannot be understood: {error}") from None

    @classmethod
    def load(cls, path: Path) -> Sweep:
        """Read a spec from a file."""
        try:
            return cls.from_toml(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            raise ValueError(f"{path} is no text file") from None
        except OSError as error:
            hint = "" if path.suffix else "; it is no preset either"
            raise ValueError(f"Cannot read {path}: {error.strerror}{hint}") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None


def _number(value: Any) -> Any:
    """One is one, with or without a decimal point."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _fitting(what: str, make: Any, options: Mapping[str, Any]) -> None:
    """Refuse options that something does not have, and name those it has."""
    has = {name: p for name, p in inspect.signature(make).parameters.items() if name != "self"}
    if any(p.kind is p.VAR_KEYWORD for p in has.values()):
        return
    unknown = sorted(options.keys() - has.keys())
    missing = [name for name, p in has.items() if p.default is p.empty and name not in options]
    if unknown:
        raise ValueError(f"{what} has no option {unknown[0]!r} (it has {', '.join(has)})")
    if missing:
        raise ValueError(f"{what} needs a value for {missing[0]!r}")


def _known(what: str, name: str, table: Mapping[str, Any]) -> None:
    if name not in table:
        raise ValueError(unknown_name(what, name, table))
