"""Specs of runs and sweeps, as plain data that round-trips through TOML."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import tomli_w
import torch

from .. import problems
from .._util.checks import whole_number
from .._util.imports import file_and_name, import_file
from .._util.places import user_code
from .._util.suggest import unknown as unknown_name
from ..delays.known import COSTS, DELAYS, WITH_CLOCK, model_of
from ..optim import METHODS
from ..policy import as_policy
from ..problems.base import Problem
from ..trace import Trace

__all__ = ["DELAYS", "Grid", "RunSet", "RunSpec", "Sweep"]

FORMAT = 1
"""Part of every key; increased when the same spec gives other numbers."""


@dataclass(frozen=True)
class RunSpec:
    """One run: everything that determines its numbers, and nothing else.

    Args:
        problem: Name of the problem.
        method: Name of the method.
        delays: Name of the delay model.
        steps: Number of arrivals.
        seed: Initialises the model and draws the schedule, so methods share the schedule of a seed.
        evaluate_every: Arrivals between evaluations.
        problem_options: Arguments of the problem.
        options: Hyper-parameters of the method.
        delay_options: Arguments of the delay model. Models with a clock also take ``factor``, ``network`` and
            ``server``, as `latecomer trace make` does.
        imports: SHA-256 of the files that define a registered method, and of the file with the ``factor``, by name; by
            default those that this process knows. They are part of the key: another rule of the same name is another
            run.

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
    imports: Mapping[str, str] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the spec as plain data; without ``imports`` for the library's own methods, and without folders."""
        plain = {name: dict(v) if isinstance(v, Mapping) else v for name, v in vars(self).items()}
        plain["imports"] = self.files
        if "factor" in self.delay_options:
            plain["delay_options"]["factor"] = Path(self.delay_options["factor"]).name
        return plain if self.files else {name: v for name, v in plain.items() if name != "imports"}

    @property
    def files(self) -> dict[str, str]:
        """SHA-256 of the files that define method and factor, by name; empty if both are the library's own."""
        return self._known_files() if self.imports is None else dict(self.imports)

    def _known_files(self) -> dict[str, str]:
        """Return the SHA-256 of the files that this process knows the method and the factor from."""
        found = METHODS[self.method].files if self.method in METHODS else None
        known = {Path(file).name: digest for file, digest in (found or {}).items()}
        if "factor" in self.delay_options:
            file = Path(file_and_name(self.delay_options["factor"], "factor")[0])
            known[file.name] = _digest(file.resolve())
        return known

    def sent(self) -> dict[str, Any]:
        """Return the spec as plain data for another process, which looks for the factor where this one does."""
        plain = self.as_dict()
        if "factor" in self.delay_options:
            plain["delay_options"]["factor"] = str(Path(self.delay_options["factor"]).absolute())
        return plain

    @property
    def key(self) -> str:
        """Key in the store: a hash of the spec."""
        content = self.as_dict()
        content["options"] = {name: _as_float(value) for name, value in content["options"].items()}
        if self.files:  # what is in them, wherever they are
            content["imports"] = sorted(self.files.values())
        text = json.dumps({"format": FORMAT, **content}, sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def check(self) -> None:
        """Raise if the run is impossible; the problem's data is not read."""
        _check_name("problem", self.problem, problems.PROBLEMS)
        _check_name("method", self.method, METHODS)
        _check_name("delay model", self.delays, DELAYS)
        whole_number("steps", self.steps, least=1)
        whole_number("seed", self.seed)
        whole_number("evaluate_every", self.evaluate_every, least=1)
        if "data_dir" in self.problem_options:
            raise ValueError("data_dir is not part of a run: use --data-dir, or set LATECOMER_DATA")
        _check_options(self.problem, problems.PROBLEMS[self.problem], self.problem_options)
        own = {name: value for name, value in self.delay_options.items() if name not in COSTS}
        more = COSTS if self.delays in WITH_CLOCK else ()
        _check_options(f"{self.delays} delays", DELAYS[self.delays], own, more)
        self.check_files()
        with self.method_code():
            METHODS[self.method]([torch.nn.Parameter(torch.zeros(1))], **self.options)
        self.make_trace(steps=1)

    def check_files(self) -> None:
        """Raise unless the method and the factor that this process knows by their names are those of this run."""
        files = METHODS[self.method].files
        if files is not None and not files:
            raise ValueError(
                f"The method {self.method} was not registered in a file, so other processes cannot import it: put it "
                "into one, and name the file in imports or with --import"
            )
        known = self._known_files()
        if sorted(known.values()) != sorted(self.files.values()):
            what = f"The method {self.method} is" if files or "factor" not in self.delay_options else "The factor is"
            names = ", ".join(sorted({*self.files, *known}))
            raise ValueError(f"{what} defined otherwise than when the run began ({names} changed)")

    def method_code(self) -> AbstractContextManager[None]:
        """Return a context in which what a registered method raises becomes a sentence; other errors stay."""
        method = METHODS.get(self.method)
        registered = method is not None and method.files is not None
        return user_code(f"The method {self.method}", among_ours=True) if registered else nullcontext()

    def make_problem(self) -> Problem:
        """Create the problem."""
        make: Any = problems.PROBLEMS[self.problem]
        made: Problem = make(**self.problem_options)
        return made

    def make_trace(self, steps: int | None = None) -> Trace:
        """Create the schedule, under the method's policy."""
        model, method = model_of(self.delays, self.delay_options), METHODS.get(self.method)
        of_method = None if method is None else method.policy
        options = {} if method is None else method.policy_options(self.options)
        with self.method_code():
            policy = None if of_method is None else as_policy(of_method, model.workers, options)
            return model.trace(self.steps if steps is None else steps, self.seed, policy)


@dataclass(frozen=True)
class Grid:
    """One method and lists of values of its hyper-parameters: all combinations are run.

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
        name: Name for people and files.
        problem: Name of the problem.
        delays: Name of the delay model.
        steps: Arrivals per run.
        seeds: Seeds; all methods share the schedule of a seed.
        grids: Methods with their values.
        evaluate_every: Arrivals between evaluations.
        problem_options: Arguments of the problem.
        delay_options: Arguments of the delay model.
        imports: Python files that register methods of your own.

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
    imports: tuple[str, ...] = ()

    def runs(self) -> list[RunSpec]:
        """Return all runs, seed by seed, checked; the files that register methods are imported first."""
        for file in self.imports:
            import_file(file)
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
            **({"imports": list(self.imports)} if self.imports else {}),
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
        """Read a sweep from TOML; raise for missing or unknown entries."""
        try:
            plain = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"The spec is not valid TOML: {error}") from None
        known = {"name", "problem", "delays", "steps", "evaluate_every", "seeds", "grid", "imports"}
        unknown, missing = plain.keys() - known, known - {"evaluate_every", "imports"} - plain.keys()
        if unknown or missing:
            what = f"has unknown entries {sorted(unknown)}" if unknown else f"lacks the entries {sorted(missing)}"
            raise ValueError(f"The spec {what} (known entries: {', '.join(sorted(known))})")
        try:
            problem, model = dict(plain["problem"]), dict(plain["delays"])
            imports = plain.get("imports", [])
            if not isinstance(imports, list) or not all(isinstance(file, str) for file in imports):
                raise ValueError(f"imports must be a list of Python files, got {imports!r}")
            grids = tuple(Grid(dict(g)["method"], {k: v for k, v in g.items() if k != "method"}) for g in plain["grid"])
            return cls(
                **{key: plain[key] for key in ("name", "steps", "evaluate_every") if key in plain},
                problem=problem.pop("name"),
                problem_options=problem,
                delays=model.pop("name"),
                delay_options=model,
                seeds=tuple(whole_number("seed", seed) for seed in plain["seeds"]),
                grids=grids,
                imports=tuple(imports),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"The spec is invalid: {error}") from None

    @classmethod
    def load(cls, path: Path) -> Sweep:
        """Read a spec from a file; the files that it names for imports and a factor are relative to its folder."""
        try:
            read = cls.from_toml(path.read_text(encoding="utf-8"))
            options = dict(read.delay_options)
            if isinstance(options.get("factor"), str):
                options["factor"] = str(path.parent / options["factor"])
            imports = tuple(str(path.parent / file) for file in read.imports)
            return replace(read, imports=imports, delay_options=options)
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not a text file") from None
        except OSError as error:
            hint = "" if path.suffix else ", and it is not the name of a preset"
            raise ValueError(f"Cannot read {path}: {error.strerror}{hint}") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None


@dataclass(frozen=True)
class RunSet:
    """Runs that are no grid: of several problems and delay models, each with its own number of arrivals.

    Args:
        name: Name for people and files.
        specs: The runs.
        imports: Python files that register methods of your own.

    Examples:
        >>> run = RunSpec("quadratic", "momentum", "uniform", 50, delay_options={"workers": 3}, options={"lr": 0.1})
        >>> len(RunSet("pair", (run, replace(run, steps=60), run)).runs())
        2
    """

    name: str
    specs: tuple[RunSpec, ...]
    imports: tuple[str, ...] = ()

    def runs(self) -> list[RunSpec]:
        """Return the runs, each once and checked; the files that register methods are imported first."""
        for file in self.imports:
            import_file(file)
        seen = set()
        for run in self.specs:
            what = repr(replace(run, steps=1, seed=0, evaluate_every=1))
            if what not in seen:  # seeds and lengths change nothing about what is possible
                run.check()
                seen.add(what)
        return list({run.key: run for run in self.specs}.values())


def _as_float(value: Any) -> Any:
    """Return whole numbers as floats: 1 and 1.0 are the same value."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


@lru_cache
def _digest(file: Path) -> str:
    """Return the SHA-256 of a file, read once per process, as the file is imported once."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _check_options(what: str, make: Any, options: Mapping[str, Any], more: Sequence[str] = ()) -> None:
    """Raise for unknown and missing options; it also has those in ``more``."""
    parameters = {name: p for name, p in inspect.signature(make).parameters.items() if name != "self"}
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    unknown = sorted(options.keys() - parameters.keys())
    missing = [name for name, p in parameters.items() if p.default is p.empty and name not in options]
    if unknown:
        raise ValueError(f"{what} has no option {unknown[0]!r} (it has {', '.join([*parameters, *more])})")
    if missing:
        raise ValueError(f"{what} needs a value for {missing[0]!r}")


def _check_name(what: str, name: str, table: Mapping[str, Any]) -> None:
    if name not in table:
        raise ValueError(unknown_name(what, name, table))
