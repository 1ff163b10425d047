"""Workers and servers on an accelerator, by a stand-in that computes on the CPU and refuses to mix devices."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import pickle
import signal
from collections import Counter, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fake_device
import latecomer as lc
from engine_tasks import KillServer, network
from fake_device import CopyLog
from latecomer.core import devices
from latecomer.core.devices import Crossing, moved
from latecomer.engines.inline import InlineEngine
from latecomer.engines.local import LocalEngine
from latecomer.engines.prefetch import Prefetcher, _pickled
from latecomer.engines.ray import RayEngine
from latecomer.testing import CHECKS, KillAt, check_engine
from latecomer.training import Task, replay

FAKE = {"device": "fake:1", "carry": CopyLog(os.devnull)}


def data(n: int = 128) -> torch.utils.data.TensorDataset:
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(0))
    return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))


def score(model: nn.Module) -> dict[str, float]:
    x, y = (part.to(next(model.parameters()).device) for part in data().tensors)
    return {"loss": float(nn.functional.mse_loss(model(x), y))}


def task(log: CopyLog | None = None, **arguments: Any) -> Task:
    """A network with batch normalisation and dropout, whose loss makes the stand-in known to workers."""
    log = CopyLog(os.devnull) if log is None else log

    def loss(model: nn.Module, batch: Any, log: CopyLog = log) -> torch.Tensor:
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    return Task(arguments.pop("model", network), loss, data(), batch_size=16, **{"evaluate": score, **arguments})


OPTIONS: dict[str, Any] = {"lr": 0.02, "workers": 2, "steps": 60, "evaluate_every": 20}


# ---- the contract and faults ----------------------------------------------------------------------------------------


def test_the_contract_holds_on_the_stand_in_in_one_process() -> None:
    assert len(check_engine(InlineEngine, processes=False, **FAKE)) == len(CHECKS) - 3


def test_the_contract_holds_on_the_stand_in_with_processes() -> None:
    assert len(check_engine(LocalEngine, **FAKE)) == len(CHECKS)


@pytest.mark.parametrize("method", ["balanced-catch-up", "ordered-mu2"])
@pytest.mark.parametrize(("device", "server_device"), [("fake:1", "cpu"), ("cpu", "fake:0"), ("fake:0", "fake:1")])
def test_killed_workers_lose_nothing_on_the_stand_in(
    device: str, server_device: str, method: str, tmp_path: Path
) -> None:
    places = {"device": device, "server_device": server_device}
    kills = KillAt((0, 10), (1, 20), (0, 35))
    run = lc.fit(task(), method=method, **OPTIONS, **places, record=tmp_path / "r.parquet", callbacks=[kills])
    assert run.deaths == 3
    arrived = run.trace.ticket.tolist()
    # Each counted once, and what deaths interrupted has arrived. One of 61 tickets is in flight at the end: it may be
    # an early one that was issued again, because a new worker's first job takes long.
    assert len(arrived) == len(set(arrived)) == 60
    assert set(arrived) <= set(range(61))
    assert replay(run.record, task()).difference == 0.0
    on_cpu = replay(run.record, task(), device="cpu", server_device="cpu")
    assert on_cpu.difference == 0.0  # the stand-in has the CPU's bits, so dropout was seeded there too


def _killed_server(arguments: dict[str, Any]) -> None:
    lc.fit(task(), **arguments, checkpoint_every=20, callbacks=[KillServer(33)])


def test_a_killed_server_resumes_on_the_stand_in(tmp_path: Path) -> None:
    arguments = {**OPTIONS, "device": "fake:0", "server_device": "fake:1", "checkpoint": tmp_path / "saved"}
    # The tests are on sys.path of this process, and of those it spawns.
    server = multiprocessing.get_context("spawn").Process(target=_killed_server, args=(arguments,))
    server.start()
    server.join()
    assert server.exitcode == -signal.SIGKILL
    run = lc.fit(task(), **arguments, record=tmp_path / "r.parquet")
    assert run.resumed_at == 33
    assert replay(run.record, task()).difference == 0.0


# ---- what crosses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_points_are_copied_down_once_and_a_contribution_up_once_per_ticket(engine: str, tmp_path: Path) -> None:
    log, size = CopyLog(tmp_path / "copies"), sum(p.numel() for p in network().parameters())
    fake_device.reset_counts()
    run = lc.fit(task(log, evaluate=None), **{**OPTIONS, "engine": engine, "device": "fake:1"}, method="momentum")
    found = [copy for _, copy in log.read()] if engine == "local" else fake_device.copies()
    ways = Counter((copy.source, copy.target) for copy in found if copy.elements == size)
    tickets = len(run.trace) + run.server.outstanding  # those in flight at the end may have been computed or not
    assert len(run.trace) <= ways["cpu", "fake:1"] <= tickets
    assert len(run.trace) <= ways["fake:1", "cpu"] <= tickets


@pytest.mark.parametrize("method", ["momentum", "mu2"])
def test_a_server_on_a_device_copies_each_point_and_each_contribution_once(method: str) -> None:
    size = sum(p.numel() for p in network().parameters())
    fake_device.reset_counts()
    run = lc.fit(
        task(evaluate=None), method=method, server_device="fake:0", engine="inline", param_groups={"*": {}}, **OPTIONS
    )
    ways = Counter((copy.source, copy.target) for copy in fake_device.copies() if copy.elements == size)
    issued = len(run.trace) + run.server.outstanding
    points = run.server.optimizer.points
    result = 2  # the final parameters are read as the last and as the chosen iterate
    assert points * issued <= ways["fake:0", "cpu"] <= points * issued + result
    assert ways["cpu", "fake:0"] == len(run.trace)


def test_copies_go_through_pinned_memory_where_there_is_some(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def pinned(host: torch.Tensor) -> torch.Tensor:
        made.append(torch.empty_like(host))
        return made[-1]

    monkeypatch.setattr(devices, "pinned_like", pinned)
    cross, there = Crossing(), torch.zeros(4, device="fake:0")
    for start in (0.0, 10.0):
        cross(there, torch.arange(4.0) + start)
        assert there.cpu().tolist() == made[0].tolist() == [start, start + 1, start + 2, start + 3]
    back = cross(torch.zeros(4), there * 2)
    assert back.tolist() == [20.0, 22.0, 24.0, 26.0]
    assert len(made) == 1  # made once, and used both ways
    assert cross(torch.zeros(4), torch.ones(4)).tolist() == [1.0] * 4  # on one device nothing goes through it


def test_there_is_no_pinned_memory_without_an_accelerator_that_has_it() -> None:
    assert devices.pinned_like(torch.zeros(3)) is None


# ---- who computes where ---------------------------------------------------------------------------------------------


def where(model: nn.Module, batch: Any) -> torch.Tensor:
    device = next(model.parameters()).device
    assert batch[0].device == device
    return nn.functional.mse_loss(model(batch[0]), batch[1]) * 0 + float(device.index or 0)


def test_auto_gives_workers_one_device_after_the_other(tmp_path: Path) -> None:
    losses: list[tuple[int, float]] = []

    class Noted(lc.training.Callback):
        def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
            losses.append((ticket.worker, loss))

    job = Task(lambda: nn.Linear(3, 1), where, data())
    run = lc.fit(job, device="auto", callbacks=[Noted()], engine="inline", **{**OPTIONS, "workers": 4})
    assert dict(losses) == {0: 0.0, 1: 1.0, 2: 0.0, 3: 1.0}
    assert run.server.parameters[0].device.type == "cpu"


def test_a_model_on_a_device_is_trained_there_and_holds_the_result() -> None:
    model = network().to("fake:1")
    losses = []

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        losses.append(str(next(model.parameters()).device))
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    run = lc.fit(model, loss, data(), engine="inline", **OPTIONS)
    assert set(losses) == {"fake:1"}
    trained = dict(model.named_parameters())["0.weight"]
    assert trained.device == torch.device("fake:1")
    assert torch.equal(trained.detach().cpu(), run.state["0.weight"])


def test_a_model_on_a_device_reaches_workers_through_the_cpu() -> None:
    job = task(model=network().to("fake:1"))
    run = lc.fit(job, **OPTIONS)
    assert run.final["loss"] < 10


Pair = namedtuple("Pair", "inputs targets")


@dataclasses.dataclass
class Batch:
    inputs: torch.Tensor
    names: list[str]


class Own:
    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def to(self, device: torch.device) -> Own:
        return Own(self.tensor.to(device))


def test_batches_of_any_nesting_move() -> None:
    x = torch.ones(2)
    packed = nn.utils.rnn.pack_sequence([torch.ones(2, 1), torch.ones(1, 1)])
    batch = {"a": [x, (x, 3)], "b": Pair(x, "name"), "c": Batch(x, ["n"]), "d": Own(x), "e": packed, "f": np.ones(2)}
    there = moved(batch, torch.device("fake:0"))
    tensors = [
        there["a"][0],
        there["a"][1][0],
        there["b"].inputs,
        there["c"].inputs,
        there["d"].tensor,
        there["e"].data,
    ]
    assert {str(t.device) for t in tensors} == {"fake:0"}
    assert there["a"][1][1] == 3
    assert there["b"].targets == "name"
    assert there["c"].names == ["n"]
    assert there["f"] is batch["f"]
    assert x.device.type == "cpu"


def test_random_numbers_drawn_on_the_device_follow_the_ticket(tmp_path: Path) -> None:
    def batch(sample: int) -> torch.Tensor:
        return torch.randn(4, 3, device="fake:0")

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        noisy = nn.functional.dropout(model(batch), 0.5)
        return (noisy - torch.randn(4, 1, device="fake:0")).square().mean()

    job = Task(lambda: nn.Linear(3, 1), loss, batch_fn=batch)
    run = lc.fit(job, device="fake:0", engine="inline", record=tmp_path / "r.parquet", **OPTIONS)
    state = torch.get_device_module("fake").get_rng_state("fake:0")
    assert replay(run.record, job).difference == 0.0
    assert torch.equal(torch.get_device_module("fake").get_rng_state("fake:0"), state)  # the user's own are left alone


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_a_device_without_an_index_is_the_first_one(engine: str, tmp_path: Path) -> None:
    run = lc.fit(task(), device="fake", server_device="fake", engine=engine, record=tmp_path / "r.parquet", **OPTIONS)
    assert not run.failures
    assert replay(run.record, task()).difference == 0.0


def test_a_backend_that_seeds_its_one_device_only_is_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch.mps, which has manual_seed and no manual_seed_all."""
    module = torch.get_device_module("fake")
    monkeypatch.setattr(devices, "_seeded", {torch.device("fake:0")})
    devices.seed_device(7)
    seeded = module.get_rng_state("fake:0")
    monkeypatch.delattr(module, "manual_seed_all")
    module.manual_seed(8)
    devices.seed_device(7)
    assert torch.equal(module.get_rng_state("fake:0"), seeded)


def test_a_replay_on_another_kind_of_device_is_measured_and_says_why(tmp_path: Path) -> None:
    """Attention takes another way on accelerators, to other bits."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inside(x.unsqueeze(-1).expand(-1, -1, 8)).mean((1, 2), keepdim=True)[..., 0]

    torch.manual_seed(0)
    job = Task(Attention(), nn.functional.mse_loss, data(), batch_size=16)
    run = lc.fit(job, device="fake:0", engine="inline", record=tmp_path / "r.parquet", **OPTIONS)
    assert "bit for bit" in replay(run.record, job).verdict
    other = replay(run.record, job, device="cpu")
    assert 0.0 < other.difference < 1e-3
    assert "it was recorded with workers on fake, and replayed on cpu" in other.verdict


def test_simulation_on_devices_has_the_cpus_bits() -> None:
    trace = lc.delays.Constant(workers=3).trace(steps=50, seed=0)
    runs = [
        lc.simulate(task(), "catch-up", trace, lr=0.02, device=device, server_device=server)
        for device, server in (("cpu", "cpu"), ("fake:1", "cpu"), ("fake:1", "fake:0"), ("fake:0", "fake:0"))
    ]
    for run in runs[1:]:
        assert run.final == runs[0].final
        for name, value in runs[0].state.items():
            assert torch.equal(run.state[name], value), name


def test_problems_of_the_library_train_on_a_device() -> None:
    trace = lc.delays.DataDependent(workers=3, slow_share=0.1).trace(steps=30, seed=0)
    for problem in (lc.problems.quadratic(), lc.problems.digits(), lc.problems.logistic()):
        here, there = (lc.simulate(problem, "momentum", trace, lr=0.01, device=d) for d in ("cpu", "fake:0"))
        assert there.final["loss"] == pytest.approx(here.final["loss"], rel=1e-4), problem


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"device": "gpu"}, "Invalid device: 'gpu'"),
        ({"device": "cuda:0"}, "this machine has none of this type"),
        ({"device": "fake:7"}, "this machine has 2 of this type"),
        ({"device": 3}, "Invalid device: 3"),
        ({"device": "meta"}, "have no values"),
        ({"server_device": "auto"}, "Invalid server_device: 'auto'"),
        ({"server_device": "mps"}, "this machine has none"),
        ({"threads": 0}, "threads"),
        ({"threads": 1.5}, "threads"),
        ({"prefetch": -1}, "prefetch"),
        ({"engine": RayEngine(gpus=1), "device": "cpu"}, "reserves GPUs, and device='cpu' does not use them"),
        ({"engine": RayEngine(), "device": "cuda"}, "needs GPUs from Ray"),
    ],
)
def test_a_wrong_device_gets_a_sentence(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        lc.fit(task(), **{**OPTIONS, "steps": 5, "engine": "inline", **arguments})


def test_a_loss_that_mixes_devices_is_reported_with_its_ticket() -> None:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return (model(batch[0]) - torch.ones(16, 1)).square().mean()  # made on the cpu

    with pytest.raises(ValueError, match="to be on the same device"):
        lc.fit(Task(network, loss, data(), batch_size=16), device="fake:0", engine="inline", **OPTIONS)


# ---- threads and prefetching ----------------------------------------------------------------------------------------


def threads(model: nn.Module, batch: Any) -> torch.Tensor:
    return (model(batch[0]) - batch[1]).square().mean() * 0 + torch.get_num_threads()


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_workers_have_the_threads_they_are_given(engine: str, tmp_path: Path) -> None:
    job = Task(lambda: nn.Linear(3, 1), threads, data())
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found: list[int] = []
        served = lc.training.OnArrival(lambda *_: found.append(torch.get_num_threads()))
        run = lc.fit(job, engine=engine, threads=3, record=tmp_path / "r.parquet", callbacks=[served], **OPTIONS)
        assert set(found) == {3}  # so does the server, which shares the cores with them
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert run.final["train_loss"] == 3.0
    assert replay(run.record, job).run.final["train_loss"] == 3.0


@pytest.mark.parametrize("ahead", [1, 3])
def test_prefetched_batches_change_no_bit(ahead: int, tmp_path: Path) -> None:
    run = lc.fit(task(), prefetch=ahead, record=tmp_path / "r.parquet", callbacks=[KillAt((0, 15))], **OPTIONS)
    assert run.deaths == 1
    assert replay(run.record, task()).difference == 0.0


def test_a_prefetcher_draws_what_the_worker_would_and_learns_which_tickets_come() -> None:
    problem = task(accumulate=2)
    prefetcher = Prefetcher(problem, seed=5, ahead=2)
    seeds = lc._util.seeds.sample_seeds(5, 200)
    number, workers = 0, 4
    for _ in range(30):
        drawn = prefetcher.take(number, int(seeds[number]))
        if drawn is not None:
            expected = problem.micro_batches(number, int(seeds[number]), 0)
            assert [seed for seed, _ in drawn[1]] == [seed for seed, _ in expected]
            for (_, (x, y)), (_, (x_expected, y_expected)) in zip(drawn[1], expected, strict=True):
                assert torch.equal(x, x_expected)
                assert torch.equal(y, y_expected)
        upcoming = number + workers
        prefetcher.guess(upcoming, workers)
        number = upcoming + 2  # always two later than the ticket that was next
    prefetcher.close()
    assert prefetcher.hits >= 27
    assert prefetcher.take(number, 1) is None  # a closed one draws nothing, and nothing waits for it
    prefetcher.guess(500, workers)


def test_a_batch_that_is_part_of_a_large_tensor_is_sent_without_the_rest() -> None:
    text = torch.arange(1_000_000.0)
    batch = {"x": text[7:19].view(3, 4), "turned": text[:12].view(3, 4).t(), "whole": text[:3] + 1}
    sent = _pickled((4, (0, [(1, batch)])))
    assert len(sent) < 10_000
    number, (group, [(seed, found)]) = pickle.loads(sent)
    assert (number, group, seed) == (4, 0, 1)
    for name, tensor in batch.items():
        assert torch.equal(found[name], tensor), name
        assert found[name].stride() == tensor.stride(), name
    gaps = text[:24:2]
    _, (_, [(_, found)]) = pickle.loads(_pickled((4, (0, [(1, gaps)]))))
    assert torch.equal(found, gaps)
    assert found.stride() == gaps.stride()


def test_a_prefetcher_that_is_killed_or_raises_leaves_the_work_to_the_worker() -> None:
    class Broken(lc.problems.Quadratic):
        def batch_of(self, number: int, sample: int, group: int) -> Any:
            raise OSError("the disk is gone")

    seeds = lc._util.seeds.sample_seeds(0, 10)
    prefetcher = Prefetcher(Broken(), seed=0, ahead=1)
    prefetcher.guess(3, 1)
    assert prefetcher.take(3, int(seeds[3])) is None
    prefetcher.close()
    prefetcher = Prefetcher(lc.problems.quadratic(), seed=0, ahead=1)
    os.kill(prefetcher._child, signal.SIGKILL)
    prefetcher.guess(3, 1)
    assert prefetcher.take(3, int(seeds[3])) is None
    prefetcher.guess(5, 1)
    prefetcher.close()


def test_a_task_that_raises_while_it_draws_is_reported_with_prefetching_too() -> None:
    def batch(sample: int) -> torch.Tensor:
        raise OSError("the disk is gone")

    job = Task(lambda: nn.Linear(3, 1), lambda model, batch: model(batch).mean(), batch_fn=batch)
    with pytest.raises(ValueError, match="the disk is gone"):
        lc.fit(job, prefetch=2, **OPTIONS)
