"""The stand-in accelerator of the tests: it computes as the CPU does, and is as strict as an accelerator."""

from __future__ import annotations

import copy
import functools
import io
import multiprocessing
import os
import pickle
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import fake_device
import latecomer as lc
from engine_tasks import data, network
from fake_device import Copy, CopyLog
from latecomer.core.flat import FlatModule
from latecomer.training import replay
from ray_marks import ON_RAY


@pytest.fixture(autouse=True)
def _restored() -> Any:
    fake_device.reset_counts()
    with torch.random.fork_rng(devices=range(fake_device.COUNT), device_type="fake"):
        yield


def cnn() -> tuple[nn.Module, Tensor, Tensor]:
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.5)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 10)), torch.randn(4, 3, 8, 8), torch.arange(4)


def transformer() -> tuple[nn.Module, Tensor, Tensor]:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.5, batch_first=True)
    model = nn.Sequential(nn.Embedding(11, 16), layer, nn.LayerNorm(16), nn.Flatten(), nn.Linear(96, 11))
    return model, torch.randint(11, (4, 6)), torch.arange(4)


def gradients(
    make: Callable[[], tuple[nn.Module, Tensor, Tensor]], device: str, autocast: bool = False
) -> list[Tensor]:
    torch.manual_seed(0)
    model, x, y = (part.to(device) for part in make())
    torch.manual_seed(1)  # of dropout
    with torch.autocast(torch.device(device).type, dtype=torch.bfloat16, enabled=autocast):
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    assert {str(p.grad.device) for p in model.parameters() if p.grad is not None} == {device}
    return [tensor.cpu() for tensor in (loss.detach(), *(p.grad for p in model.parameters()), *model.buffers())]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("device", ["fake:0", "fake:1"])
@pytest.mark.parametrize("make", [cnn, transformer])
def test_gradients_have_the_bits_of_the_cpu(make: Any, device: str, autocast: bool) -> None:
    here, there = gradients(make, "cpu", autocast), gradients(make, device, autocast)
    assert all(map(torch.equal, here, there))
    if autocast:
        assert not torch.equal(here[1], gradients(make, device)[1])


def test_backward_in_a_thread_of_its_own() -> None:
    results: list[list[Tensor]] = []
    thread = threading.Thread(target=lambda: results.append(gradients(cnn, "fake:1")))
    thread.start()
    thread.join()
    assert all(map(torch.equal, results[0], gradients(cnn, "cpu")))


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"foreach": False}, {"fused": True}])
@pytest.mark.parametrize("optimizer", [functools.partial(torch.optim.SGD, momentum=0.9), torch.optim.AdamW])
def test_optimizers_of_torch(optimizer: Any, options: dict[str, bool]) -> None:
    ends = []
    for device in ("cpu", "fake:0"):
        torch.manual_seed(0)
        model = nn.Linear(3, 2).to(device)
        steps = optimizer(model.parameters(), lr=0.1, **options)
        for _ in range(3):
            steps.zero_grad()
            model(torch.ones(2, 3, device=device)).square().sum().backward()
            steps.step()
        ends.append(model.weight.detach().cpu())
    assert torch.equal(*ends)


def test_parameters_and_gradients_are_views_of_flat_tensors() -> None:
    flat, out = torch.zeros(8, device="fake:0"), torch.zeros(8, device="fake:0")
    p = nn.Parameter(torch.ones(2, 2, device="fake:0"))
    p.data, p.grad = flat[2:6].view(2, 2), out.narrow(0, 2, 4).as_strided((2, 2), (2, 1))
    flat.copy_(torch.arange(8.0))
    version = p._version
    p.square().sum().backward()
    assert p.tolist() == [[2, 3], [4, 5]]
    assert out.tolist() == [0, 0, 4, 6, 8, 10, 0, 0]
    assert p.data_ptr() == flat.data_ptr() + 8
    assert p.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr() == flat.data_ptr()
    p.detach().mul_(2)
    assert p._version == version + 1
    assert [piece.tolist() for piece in flat.split([3, 5])] == [[0, 1, 4], [6, 8, 10, 6, 7]]


def test_a_flat_module_of_the_library() -> None:
    torch.manual_seed(0)
    model, x, y = (part.to("fake:0") for part in cnn())
    parameters = list(model.parameters())
    flat = FlatModule(model)
    out = torch.empty_like(flat.x)
    expected = gradients(cnn, "cpu")[1 : 1 + len(parameters)]
    for _ in range(2):
        torch.manual_seed(1)
        flat.gradient(flat.x, lambda model: F.cross_entropy(model(x), y), out)
        assert torch.equal(out.cpu(), torch.cat([g.flatten() for g in expected]))
        with pytest.raises(ValueError, match="replaced the parameter 'weight'"):  # from here to there torch has to
            flat.gradient(flat.x, lambda model: model.to("cpu")(x.cpu()).sum(), out)
        with pytest.raises(ValueError, match="put the parameter '0.weight' into other memory"):  # noqa: RUF043
            flat.gradient(flat.x, lambda model: model.double()(x.double()).sum(), out)


MIXED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "add": torch.add,
    "add_": lambda a, b: a.add_(b),
    "matmul": torch.matmul,
    "cat": lambda a, b: torch.cat([a, b]),
    "foreach": lambda a, b: torch._foreach_add_([a], [b]),
    "linear": lambda a, b: F.linear(a, b, b),
    "index": lambda a, b: a[b.long()],
    "loss": lambda a, b: F.cross_entropy(a, b),
}


@pytest.mark.parametrize("devices", [("fake:0", "cpu"), ("cpu", "fake:0"), ("fake:0", "fake:1")])
@pytest.mark.parametrize("name", MIXED)
def test_tensors_of_two_devices_do_not_meet(name: str, devices: tuple[str, str]) -> None:
    a, b = (torch.full((2, 2), 0.5, device=device) for device in devices)
    with pytest.raises(RuntimeError, match="same device"):
        MIXED[name](a, b)
    assert fake_device.copies() == []


def test_other_errors_of_an_accelerator() -> None:
    x = torch.ones(2, device="fake:0")
    assert (x * torch.tensor(3.0)).tolist() == [3, 3]  # a number on the cpu is fine, but not as the target
    with pytest.raises(RuntimeError, match="would write from fake:0"):
        torch.zeros(()).add_(x.sum())
    with pytest.raises(TypeError, match="can't convert fake:0"):
        x.numpy()
    with pytest.raises(RuntimeError, match="'fake' device type for generator"):
        x.bernoulli(generator=torch.Generator())
    with pytest.raises(RuntimeError, match="Invalid device: fake:2"):
        torch.ones(2, device="fake:2")


def test_copies_are_counted() -> None:
    x = torch.ones(3, dtype=torch.float64).to("fake:0")
    x.to("fake:1").sum().item()
    torch.zeros(3).copy_(x[:2].sum())
    x.clone().copy_(x.to("fake:0", non_blocking=True))
    x.to("cpu", torch.float32, non_blocking=True)
    up, down = "fake:0", "cpu"
    assert fake_device.copies() == [
        Copy(down, up, 3, 24), Copy(up, "fake:1", 3, 24), Copy("fake:1", down, 1, 8), Copy(up, down, 1, 8),
        Copy(up, down, 3, 24),
    ]  # fmt: skip
    fake_device.reset_counts()
    assert fake_device.copies() == []


def test_each_device_has_its_random_numbers() -> None:
    torch.manual_seed(3)
    here = torch.rand(4), torch.rand(4)
    torch.manual_seed(3)
    zero, one = torch.rand(4, device="fake:0"), torch.rand(4, device="fake:1")
    assert torch.equal(zero.cpu(), here[0])
    assert torch.equal(one.cpu(), here[0])
    assert torch.equal(torch.rand(4), here[0])  # not advanced by the others
    state = torch.fake.get_rng_state(0)
    with torch.random.fork_rng(devices=[0], device_type="fake"):
        torch.default_generator.manual_seed(3)  # of the cpu alone
        assert torch.equal(torch.rand(4, device="fake:0").cpu(), here[1])
    assert torch.equal(torch.fake.get_rng_state("fake:0"), state)
    torch.get_device_module("fake").manual_seed(3, "fake:1")
    assert torch.equal(torch.rand(4, device="fake:1"), one)


def test_the_accelerator_of_torch() -> None:
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("fake")
    assert torch.accelerator.device_count() == 2
    torch.accelerator.synchronize("fake:1")
    fake_device.install()  # once more


def test_copies_of_models_and_files() -> None:
    model = nn.Linear(2, 3).to("fake:1")
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.weight.device == model.weight.device
        assert torch.equal(other.weight, model.weight)
        assert other.weight.data_ptr() != model.weight.data_ptr()
    for place, expected in ((None, "fake:1"), ("cpu", "cpu"), ("fake:0", "fake:0")):
        file.seek(0)
        loaded = torch.load(file, map_location=place, weights_only=True)["weight"]
        assert str(loaded.device) == expected
        assert torch.equal(loaded.cpu(), model.weight.cpu())


def test_a_worker_process_has_the_devices_and_logs_its_copies(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    with CopyLog(tmp_path / "copies") as log, ProcessPoolExecutor(1, mp_context=context) as pool:
        assert pool.submit(log.read).result() == []  # the log in it has imported the module
        three = pool.submit(eval, "__import__('torch').tensor([1.0, 2.0], device='fake:1').sum().item()").result()
        assert torch.tensor([1.0, 2.0], device="fake:1").sum().item() == three
    pids, copied = zip(*log.read(), strict=True)
    assert [pid == os.getpid() for pid in pids] == [False, False, True, True]
    assert copied == (Copy("cpu", "fake:1", 2, 8), Copy("fake:1", "cpu", 1, 4)) * 2
    with pytest.raises(RuntimeError, match="only available on CPU"):  # torch's queues share the memory of the cpu alone
        ForkingPickler.dumps(torch.ones(2, device="fake:0"))


@pytest.mark.parametrize("engine", ["inline", "local", pytest.param("ray", marks=ON_RAY)])
def test_workers_of_every_engine_have_the_devices(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if engine == "ray":
        request.getfixturevalue("ray_cluster")
    log, path = CopyLog(tmp_path / "copies"), tmp_path / "run.parquet"

    def loss(model: nn.Module, batch: list[Tensor], log: CopyLog = log) -> Tensor:  # as a default it is sent along
        return F.mse_loss(model(batch[0]).to("fake:1"), batch[1].to("fake:1")).cpu()

    task, here = (lc.training.Task(network, f, data(), batch_size=16) for f in (loss, F.mse_loss))
    with log:
        lc.fit(task, method="momentum", lr=0.1, workers=2, engine=engine, steps=6, record=path)
    assert replay(path, here).difference == 0.0
    up, down = Counter(copy for _, copy in log.read()), Copy("fake:1", "cpu", 1, 4)
    assert {pid == os.getpid() for pid, _ in log.read()} == {engine == "inline"}
    assert up[Copy("cpu", "fake:1", 16, 64)] == 2 * up[down] >= 12
