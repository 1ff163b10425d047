"""Final parameters and history of every method as hashes, so that a change of structure cannot change a result.

``python tests/golden_results.py`` writes ``tests/golden/results.json`` again. Do that in a commit of its own, and say
why the results changed. Bits depend on the kernels of torch for a processor: ``--add`` adds the hashes of this machine
to those of others, if loss and norm of every result agree.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import latecomer as lc

FILE = Path(__file__).parent / "golden" / "results.json"
STEPS = 48
INTERRUPTED_AT = 30
COLUMNS = ("update", "train_loss", "delay", "loss", "accuracy", "f1", "f1_slow", "f1_fast", "squared_gradient")
"""What of a history is hashed, where it has it."""
OPTIONS: dict[str, dict[str, Any]] = {
    "async-sgd": {"lr": 0.05},
    "delay-adaptive": {"lr": 0.05},
    "delay-filtered": {"lr": 0.05, "threshold": 1.5},
    "momentum": {"lr": 0.05, "beta": 0.2},
    "mu2": {"lr": 0.05, "beta": 0.2, "gamma": 0.1},
    "ordered-momentum": {"lr": 0.05, "beta": 0.2},
    "catch-up": {"lr": 0.05, "beta": 0.2},
    "ordered-mu2": {"lr": 0.05, "beta": 0.2, "gamma": 0.1},
    "ordered-mu2-anytime": {"lr": 0.001},
    "catch-up-adamw": {"lr": 0.002},
    "clipped-catch-up": {"lr": 0.05, "beta": 0.2, "clip": 1.01, "clip_rate": 0.2},
    "balanced-catch-up": {"lr": 0.05, "beta": 0.2, "clip": 1.01, "clip_rate": 0.2},
    "balanced-momentum": {"lr": 0.05, "beta": 0.2, "clip": 1.01, "clip_rate": 0.2},
    "balanced-adamw": {"lr": 0.002, "clip": 1.01, "clip_rate": 0.2},
    "rate-free": {},
    "ormo": {"lr": 0.01, "beta": 0.2},
    "ormo-da": {"lr": 0.01, "beta": 0.2, "L": 4.0},
    "ringmaster": {"lr": 0.05, "R": 2},
    "ringmaster-stop": {"lr": 0.05, "R": 2},
    "ringleader": {"lr": 0.05},
    "rennala": {"lr": 0.05, "S": 2},
    "sync-minibatch": {"lr": 0.05},
    "async-minibatch": {"lr": 0.05, "beta": 0.2, "B": 2},
    "picky": {"lr": 0.05, "radius": 0.7},
    "staleness-aware": {"lr": 0.05},
    "dc-asgd": {"lr": 0.05, "lam": 0.5, "adaptive": True},
    "dana-zero": {"lr": 0.01, "beta": 0.2},
    "asap": {"lr": 0.05},
    "fedbuff": {"lr": 0.05, "K": 2},
    "fadas": {"lr": 0.002, "K": 2, "threshold": 1},
    "anytime-sgd": {"lr": 0.001},
    "clipped": {"lr": 0.05, "clip_at": 1.0},
    "ringmaster-lmo": {"lr": 0.05, "beta": 0.2, "R": 2, "oracle": "spectral"},
    "ordered-adamw": {"lr": 0.002},
}
CASES = [(method, problem, driver) for method in OPTIONS for problem in ("quadratic", "digits") for driver in
         ("simulate", "fit")]  # fmt: skip


CLOSE = 1e-3
"""How far loss and norm may be from the stored ones, relatively, where the kernels are others."""


def fingerprint() -> str:
    """Hash the results of a few fixed operations: other processors and kernels round otherwise.

    They are those of the networks that are trained, in the same layouts and about the same sizes, with their gradients.
    """
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).requires_grad_()

    images, matrix = random(16, 1, 8, 8), random(37, 41)
    first, second, linear = random(8, 1, 3, 3), random(16, 8, 3, 3), random(10, 64)
    channels_last = {"memory_format": torch.channels_last}
    hidden = torch.conv2d(images.contiguous(**channels_last), first.contiguous(**channels_last), padding=1).relu()
    hidden = torch.conv2d(torch.max_pool2d(hidden, 2), second.contiguous(**channels_last), padding=1).relu()
    logits = torch.max_pool2d(hidden, 2).flatten(1) @ linear.T
    loss = torch.nn.functional.cross_entropy(logits / 10, torch.arange(16) % 10)
    gradients = torch.autograd.grad(loss, [images, first, second, linear])
    sums = [matrix @ matrix.T, matrix.double().sum(), matrix.sum(), matrix.norm(), matrix.abs().sqrt().reciprocal()]
    return _sha256(b"".join(each.detach().contiguous().numpy().tobytes() for each in [loss, *gradients, *sums]))


def kernels() -> dict[str, str]:
    """Return what the bits of a result depend on, besides the code."""
    return {
        "torch": torch.__version__,
        "processor": torch.backends.cpu.get_cpu_capability(),
        "operations": fingerprint(),
    }


def result(method: str, problem: str, driver: str, columns: list[str] | None = None) -> dict[str, Any]:
    """Train a method for a few updates, interrupt it and let it go on, and describe where it ends."""
    task = lc.problems.quadratic() if problem == "quadratic" else lc.problems.digits()
    with tempfile.TemporaryDirectory() as folder:
        run = (_simulated if driver == "simulate" else _fitted)(task, method, Path(folder))
    x = torch.cat([value.detach().double().flatten() for value in run.state.values()])
    columns = columns or [name for name in COLUMNS if name in run.history.columns]
    rows = json.dumps(run.history.select(columns).rows())
    return {
        "parameters": _sha256(x.numpy().tobytes()),
        "history": _sha256(rows.encode()),
        "columns": columns,
        "loss": run.final["loss"],
        "norm": float(x.norm()),
    }


def _simulated(problem: Any, method: str, folder: Path) -> Any:
    trace = _trace(method)

    def train(callbacks: Any = ()) -> Any:
        options = {"checkpoint": folder / "checkpoint", "checkpoint_every": 20, **OPTIONS[method]}
        return lc.simulate(problem, method, trace, seed=3, evaluate_every=12, callbacks=callbacks, **options)

    return _resumed(train)


def _trace(method: str) -> lc.Trace:
    rule = lc.optim.METHODS[method]
    if rule.policy is None:
        return lc.delays.DataDependent(workers=3, slow_share=0.2).trace(steps=STEPS, seed=5)
    policy = lc.policy.as_policy(rule.policy, 3, rule.policy_options(OPTIONS[method]))
    return lc.delays.SampleCost(workers=3, cost=(1.0, 3.5), slow_share=0.2).trace(STEPS, 5, policy=policy)


def _resumed(train: Any) -> Any:
    with contextlib.suppress(InterruptedError):
        train([_Interrupt()])
    resumed = train()
    assert resumed.resumed_at >= 20, "it started from the beginning"
    return resumed


class _Interrupt(lc.training.Callback):
    def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
        if outcome.arrival == INTERRUPTED_AT:
            raise InterruptedError


def _fitted(problem: Any, method: str, folder: Path) -> Any:
    def train(callbacks: Any = ()) -> Any:
        options = {"checkpoint": folder / "checkpoint", "checkpoint_every": 20, **OPTIONS[method]}
        return lc.fit(
            problem, method=method, workers=3, engine="inline", steps=STEPS, seed=3, evaluate_every=12,
            callbacks=callbacks, **options,
        )  # fmt: skip

    return _resumed(train)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def stored() -> dict[str, Any]:
    """Return what is in the file."""
    return json.loads(FILE.read_text()) if FILE.is_file() else {"kernels": [], "results": {}}


def write(add: bool = False) -> None:
    """Make all results and store them; with ``add`` beside those of other kernels, which must be close."""
    old, own, found = stored(), kernels(), {}
    for case in map(" ".join, CASES):
        # histories are compared by the columns that are stored
        found[case] = result(*case.split(), old["results"].get(case, {}).get("columns"))
    hashes = {case: [each.pop("parameters"), each.pop("history")] for case, each in found.items()}
    others = [each for each in old["kernels"] if add and not own.items() <= each.items()]
    if add:
        if new := sorted(set(found) - set(old["results"])):
            sys.exit(f"There are no results of {', '.join(new)} in {FILE}: write the file without --add first")
        for case, name in itertools.product(found, ("loss", "norm")):
            if not math.isclose(found[case][name], old["results"][case][name], rel_tol=CLOSE):
                sys.exit(f"The {name} of {case} is {found[case][name]} here and {old['results'][case][name]} in {FILE}")
        found = old["results"]
    FILE.write_text(json.dumps({"kernels": [*others, {**own, "hashes": hashes}], "results": found}, indent=1) + "\n")
    print(f"{len(found)} results in {FILE.relative_to(Path.cwd())}, for {len(others) + 1} kinds of kernels")


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:] not in ([], ["--add"]):
        sys.exit(f"Invalid arguments: {' '.join(sys.argv[1:])} (expected --add, or none)")
    write(add=bool(sys.argv[1:]))
