"""Files to damage: checkpoints, journals, traces, records, stores and pieces."""

from __future__ import annotations

import contextlib
import random
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import nn

import latecomer as lc
from latecomer.experiments import RunSpec, Store
from latecomer.experiments.pieces import Pieces, read_piece
from latecomer.experiments.sweep import run_one
from latecomer.training import replay

from .target import Target, crafted, damage

__all__ = ["Regression", "file_targets"]


def bits(run: lc.Run) -> list[Any]:
    return [*(tensor.numpy().tobytes() for tensor in run.state.values()), run.trace.digest, run.server.arrivals]


class Regression(lc.problems.Problem):
    """A small model with batch normalisation and dropout."""

    name = "regression"

    def model(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(0.2), nn.Linear(3, 1))

    def batch(self, sample: int, group: int) -> Any:
        return torch.randn(4, 2, generator=torch.Generator().manual_seed(sample % 2**63))

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        return nn.functional.mse_loss(model(batch), batch.sum(1, keepdim=True))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        return {"norm": float(sum(p.norm() for p in model.parameters()))}


class Stop(lc.training.Callback):
    """Ends a run by an error, as a crash does."""

    def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
        if outcome.arrival == 17:
            raise RuntimeError("stopped")


def simulated(folder: Path) -> Target:
    trace = lc.delays.Constant(workers=2).trace(steps=12, seed=0)

    def go(checkpoint: Path | None) -> list[Any]:
        every = None if checkpoint is None else 4
        return bits(lc.simulate(Regression(), "mu2", trace, lr=0.05, checkpoint=checkpoint, checkpoint_every=every))

    go(folder / "simulate")

    def mutate(rng: random.Random, place: Path) -> tuple[str, Callable[[], Any]]:
        copy = shutil.copytree(folder / "simulate", place / "ckpt")
        path = rng.choice(sorted(copy.glob("arrival-*"))[-2:])  # those of the newest
        did = crafted(rng, path) if path.suffix == ".json" and rng.random() < 0.3 else damage(rng, path)
        return did, lambda: go(copy)

    return Target("checkpoint of simulate", mutate, go(None), weight=3)


def fitted(folder: Path) -> Target:
    options: dict[str, Any] = {"method": "momentum", "lr": 0.05, "workers": 1, "engine": "inline", "steps": 20}

    def go(checkpoint: Path | None, *callbacks: Any) -> lc.Run:
        every = None if checkpoint is None else 6
        return lc.fit(Regression(), checkpoint=checkpoint, checkpoint_every=every, callbacks=callbacks, **options)

    with contextlib.suppress(RuntimeError):
        go(folder / "fit", Stop())
    (folder / "fit" / "arrival-000000017.json").unlink()  # a killed server writes none
    intact = (folder / "fit" / "journal").read_bytes()

    def mutate(rng: random.Random, place: Path) -> tuple[str, Callable[[], Any]]:
        copy = shutil.copytree(folder / "fit", place / "ckpt")
        (copy / ".lock").unlink()
        path = rng.choice([copy / "journal", *sorted(copy.glob("arrival-*.*"))[-2:]])
        did = crafted(rng, path) if path.suffix == ".json" and rng.random() < 0.3 else damage(rng, path)
        # No reader can tell a shortened journal from that of an earlier crash. All else that loses arrivals is told.
        left = path.read_bytes() if path.exists() else b""
        shortened = path.name == "journal" and len(left) < len(intact) and intact.startswith(left)

        def resumed() -> Any:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                run = go(copy)
            for each in caught:
                warnings.warn(each.message, stacklevel=1)
            if run.resumed_at < 17 and not caught and not shortened:
                return "silent"
            return bits(run)

        return did, resumed

    return Target("checkpoint and journal of fit", mutate, bits(go(None)), weight=3)


def traced(folder: Path) -> Target:
    trace = lc.delays.SampleCost(workers=3, cost=(1.0, 4.0), slow_share=0.3).trace(steps=40, seed=1)
    path = trace.save(folder / "trace.parquet")

    def mutate(rng: random.Random, place: Path) -> tuple[str, Callable[[], Any]]:
        copy = Path(shutil.copy(path, place / "trace.parquet"))
        if rng.random() < 0.7:
            did = damage(rng, copy)
        else:  # as somebody else would write it: without the seal, and with another cell
            frame, metadata = pl.read_parquet(copy), dict(pl.read_parquet_metadata(copy))
            name, row = rng.choice(frame.columns), rng.randrange(len(frame))
            values = frame[name].to_list()
            values[row] = rng.choice([None, *values])
            frame.with_columns(pl.Series(name, values, dtype=frame.schema[name])).write_parquet(copy, metadata=metadata)
            did = f"another {name} in row {row}"

        def load() -> Any:
            found = lc.Trace.load(copy)
            return found.digest, found.header.seed, found.columns["end"].tobytes()

        return did, load

    expected = trace.digest, trace.header.seed, trace.columns["end"].tobytes()
    return Target("trace", mutate, expected, weight=3)


def recorded(folder: Path) -> Target:
    problem = Regression()
    lc.fit(problem, lr=0.05, workers=2, engine="inline", steps=12, record=folder / "run.parquet")

    def go(path: Path) -> Any:
        found = replay(path, problem)
        return found.verdict, found.difference, bits(found.run)

    def mutate(rng: random.Random, place: Path) -> tuple[str, Callable[[], Any]]:
        for name in ("run.parquet", "run.safetensors"):
            shutil.copy(folder / name, place / name)
        return damage(rng, place / rng.choice(["run.parquet", "run.safetensors"])), lambda: go(place / "run.parquet")

    return Target("record", mutate, go(folder / "run.parquet"), weight=2)


def stored(folder: Path) -> Target:
    spec = RunSpec("quadratic", "momentum", "uniform", 20, delay_options={"workers": 2}, options={"lr": 0.1})
    run_one(spec.as_dict(), str(folder / "store"))

    def go(place: Path) -> Any:
        store = Store(place)
        return store.record(spec.key), store.history(spec.key).to_dict(as_series=False), store.table().to_dicts()

    def mutate(rng: random.Random, place: Path) -> tuple[str, Callable[[], Any]]:
        copy = shutil.copytree(folder / "store", place / "store")
        path = next(copy.glob(f"*/*/{rng.choice(['run.json', 'history.parquet'])}"))
        did = crafted(rng, path) if path.suffix == ".json" and rng.random() < 0.3 else damage(rng, path)
        return did, lambda: go(copy)

    return Target("entry of a store", mutate, repr(go(folder / "store")), weight=2)


def pieces(folder: Path) -> Target:
    path = Pieces(folder / "pieces").export(Store(folder / "store"))
    if path is None:
        raise ValueError("the store is empty")

    def go(piece: Path) -> Any:
        return repr(read_piece(piece))

    def mutate(rng: random.Random, place: Path) -> tuple[str, Callable[[], Any]]:
        copy = Path(shutil.copy(path, place / path.name))
        return damage(rng, copy), lambda: go(copy)

    return Target("piece", mutate, go(path))


def file_targets(folder: Path) -> list[Target]:
    """Make the files, and return what damages copies of them."""
    made = [simulated(folder), fitted(folder), traced(folder), recorded(folder)]
    return [*made, stored(folder), pieces(folder)]  # the piece is made of the store
