"""Words and arguments to change: specs of sweeps, the command line, and the arguments of functions."""

from __future__ import annotations

import contextlib
import inspect
import io
import math
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import torch
from torch import nn

import latecomer as lc
from latecomer.cli.main import main as command
from latecomer.experiments import Grid, Sweep
from latecomer.optim import methods
from latecomer.training import replay

from .files import Regression
from .target import RefusedError, Target, damage

__all__ = ["argument_targets"]

WORDS = [
    "nan",
    "inf",
    "-1",
    "0",
    "1e400",
    "99999999999999999999",
    "''",
    "[]",
    "{}",
    "true",
    "x",
    "momentum",
    "=",
    '"',
    "\n",
]


def specs(folder: Path) -> Target:
    sweep = Sweep("s", "quadratic", "data-dependent", 20, (0, 1), (Grid("momentum", {"lr": [0.1], "beta": [0.1]}),),
                  delay_options={"workers": 3, "slow_share": 0.1})  # fmt: skip
    text = sweep.to_toml()

    def mutate(rng: random.Random, place: Path) -> tuple[str, Callable[[], Any]]:
        path = place / "spec.toml"
        words = text.split(" ")
        if rng.random() < 0.6:
            at = rng.randrange(len(words))
            words[at] = rng.choice(WORDS) + ("\n" if "\n" in words[at] else "")
            path.write_text(" ".join(words))
            did = f"word {at}: {words[at]!r}"
        else:
            path.write_text(text)
            did = damage(rng, path)
        return did, lambda: len(Sweep.load(path).runs())

    return Target("spec of a sweep", mutate, weight=2)


def commands(folder: Path) -> Target:
    script = folder / "mutated_task.py"
    script.write_text("import latecomer as lc\n\ntask = lc.problems.quadratic()\n")
    train = f"train {script}:task --engine inline --steps 5"
    lines = [
        "trace make --model uniform --workers 3 --steps 20 --seed 0 --slow-share 0.1 --out t.parquet",
        "trace make --model sample-cost --costs 1 3 --steps 20 --out t.parquet",
        "trace make --model worker-speeds --durations 1 2 --noise exponential --steps 20 --out t.parquet",
        f"trace show {folder / 'trace.parquet'}",
        f"replay {folder / 'run.parquet'} --problem quadratic --set lr=0.1",
        f"{train} --workers 2 --set lr=0.1 --seed 1 --record r.parquet --save m.safetensors",
        f"{train} --checkpoint ckpt --checkpoint-every 2 --timeout 3 --evaluate-every 2",
        "methods show momentum",
        "run --problem quadratic --method momentum --steps 20 --workers 2 --set lr=0.1",
    ]

    def mutate(rng: random.Random, place: Path) -> tuple[str, Callable[[], Any]]:
        words = rng.choice(lines).split(" ")
        kind = rng.choice(["replace", "replace", "replace", "drop", "double", "flip"])
        at = rng.randrange(1, len(words))
        endless = words[at - 1] == "--steps" and words[0] in ("train", "run")  # a huge number is a long run
        if kind == "replace":
            others = [*WORDS, "--", "--help", "-x", "..", "a/b", "lr=", "lr=None", "lr=-1"]
            words[at] = rng.choice([word for word in others if not (endless and word.startswith("999"))])
        elif kind == "drop":
            del words[at]
        elif kind == "double":
            words.insert(at, words[at])
        elif words[at]:
            i = rng.randrange(len(words[at]))
            words[at] = words[at][:i] + chr(ord(words[at][i]) ^ 1) + words[at][i + 1 :]

        def run() -> Any:
            out, err = io.StringIO(), io.StringIO()
            with contextlib.chdir(place), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                try:
                    code: Any = command(words)
                except SystemExit as stop:
                    code = stop.code
            said = [line for line in err.getvalue().splitlines() if line.strip() and "Warning" not in line]
            if code == 2:
                if len(said) != 1 or "Traceback" in err.getvalue():
                    raise RuntimeError(f"{len(said)} lines: {err.getvalue()[:400]}")
                raise RefusedError(said[0])
            if code not in (0, None):
                raise RuntimeError(f"exit code {code}: {err.getvalue()[-300:]}")
            return code

        return " ".join(words), run

    return Target("command line", mutate, weight=2)


def nothing(*_: Any) -> None:
    return None


HUGE = 10**30
VALUES: list[Any] = [
    None, "", "x", -1, 0, 1, 2.5, -0.5, math.nan, math.inf, -math.inf, HUGE, True, [], [1, "a"], {}, {"a": 1}, b"x",
    object(), nothing, nn.ReLU, torch.zeros(2), torch.tensor(3), 1j, Path("x"), ("a", "b"), range(3), lambda *_: 1, int,
]  # fmt: skip


def arguments(
    name: str,
    base: Callable[[Path], tuple[Callable[..., Any], dict[str, Any], list[str]]],
    weight: int,
    endless: str | None = None,
) -> Target:
    """Replace one or two arguments of a call by values of other types; a huge ``endless`` would be a long run."""

    def mutate(rng: random.Random, place: Path) -> tuple[str, Callable[[], Any]]:
        function, given, names = base(place)
        changed = {}
        for argument in rng.sample(names, rng.choice([1, 1, 1, 2])):
            values = [value for value in VALUES if not (argument == endless and value is HUGE)]
            changed[argument] = rng.choice(values)
        shown = ", ".join(f"{key}={value!r}"[:60] for key, value in changed.items())

        def call() -> Any:
            nowhere = io.StringIO()
            with contextlib.chdir(place), contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
                return type(function(**{**given, **changed})).__name__

        return shown, call

    return Target(name, mutate, weight=weight)


def fit_call(place: Path) -> tuple[Callable[..., Any], dict[str, Any], list[str]]:
    x = torch.randn(16, 2, generator=torch.Generator().manual_seed(0))
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    given = {"model": nn.Linear(2, 1), "loss_fn": nn.functional.mse_loss, "dataset": data, "steps": 4, "lr": 0.1}
    names = [name for name in inspect.signature(lc.fit).parameters if name != "options"] + ["lr", "beta", "clip"]
    return lc.fit, {**given, "engine": "inline", "workers": 2, "batch_size": 4}, names


def simulate_call(place: Path) -> tuple[Callable[..., Any], dict[str, Any], list[str]]:
    trace = lc.delays.Constant(workers=2).trace(steps=5, seed=0)
    names = [name for name in inspect.signature(lc.simulate).parameters if name != "options"] + ["lr", "beta"]
    return lc.simulate, {"problem": lc.problems.quadratic(), "method": "momentum", "trace": trace, "lr": 0.1}, names


def replay_call(folder: Path) -> Callable[[Path], tuple[Callable[..., Any], dict[str, Any], list[str]]]:
    names = [name for name in inspect.signature(replay).parameters if name != "options"] + ["lr", "beta"]
    return lambda place: (replay, {"record": folder / "run.parquet", "problem": Regression()}, names)


def delays_call(place: Path) -> tuple[Callable[..., Any], dict[str, Any], list[str]]:
    def make(kind: str, steps: Any, seed: Any, **given: Any) -> Any:
        return getattr(lc.delays, kind)(**given).trace(steps, seed)

    kinds: dict[str, dict[str, Any]] = {
        "DataDependent": {"workers": 3, "slow_share": 0.1, "exact": True, "dependent": True},
        "Uniform": {"workers": 3, "shares": (0.5, 0.5)},
        "Constant": {"workers": 3},
        "WorkerSpeeds": {"durations": (1.0, 2.0), "noise": "exponential"},
        "SampleCost": {"workers": 3, "cost": (1.0, 3.0), "slow_share": 0.1, "speeds": (1.0, 1.0, 2.0)},
    }
    # The folder's number chooses, so that a mutation follows from its number alone.
    kind = sorted(kinds)[int(place.name.rpartition("-")[2]) % len(kinds)]
    return make, {"kind": kind, "steps": 10, "seed": 0, **kinds[kind]}, ["steps", "seed", *kinds[kind], "shares"]


def own_call(place: Path) -> tuple[Callable[..., Any], dict[str, Any], list[str]]:
    """Return a run with a delay model and a policy of the user's, which answer anything."""

    def run(jobs: Any, job: Any, workers: Any, shares: Any, name: Any, weight: Any, **answers: Any) -> Any:
        given = {
            "workers": workers,
            "shares": shares,
            "jobs": lambda self, seed: (lambda *_: job) if jobs is ... else jobs,
        }
        model = type("Model", (lc.delays.ClockModel,), given)()
        if answers["receive"] is ...:
            answers["receive"] = lc.policy.Decision("hold", weight)
        own = {key: lambda self, *_, value=value: value for key, value in answers.items()}
        policy = type("Own", (lc.policy.Policy,), {"name": name, **own})
        trace = model.trace(5, 0, policy)
        lc.fit(lc.problems.quadratic(), method="momentum", lr=0.1, policy=policy, engine="inline", workers=2, steps=5)
        return trace

    given = {"jobs": ..., "job": (1.0, 0), "workers": 2, "shares": (1.0,), "name": "own", "weight": 1.0}
    given |= {"receive": ..., "cancel": (), "may_start": True}
    return run, given, list(given)


def register_call(place: Path) -> tuple[Callable[..., Any], dict[str, Any], list[str]]:
    def register(**given: Any) -> Any:
        known = dict(methods._METHODS)
        try:
            method = lc.optim.register(**given)
            return pickle.loads(cloudpickle.dumps(method))
        finally:
            methods._METHODS.clear()
            methods._METHODS.update(known)

    given = {"name": "mutated", "optimizer": lc.optim.Momentum, "policy": None, "influence": None, "source": ""}
    return register, given | {"replace": False}, [*given, "replace"]


def argument_targets(folder: Path) -> list[Target]:
    """Return what changes words and arguments; the files of `file_targets` are in the folder."""
    return [
        specs(folder),
        commands(folder),
        arguments("arguments of fit", fit_call, 3, endless="steps"),
        arguments("arguments of simulate", simulate_call, 2),
        arguments("arguments of replay", replay_call(folder), 1),
        arguments("arguments of delays", delays_call, 2),
        arguments("own policy and delay model", own_call, 2),
        arguments("arguments of register", register_call, 1),
    ]
