"""What people bring to `fit`: loaders, epochs, dicts, models with their own loss, autocast, micro-batches."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, WeightedRandomSampler

import latecomer as lc
from engine_tasks import by_sign, data, network
from latecomer.cli.main import main
from latecomer.training import Task, replay

ROOT = Path(__file__).parent.parent.parent
OPTIONS: dict[str, Any] = {"lr": 0.02, "workers": 2}


def replays(task: Task, tmp_path: Path, engine: str = "inline", steps: int = 12, **options: Any) -> lc.Run:
    run = lc.fit(task, steps=steps, engine=engine, record=tmp_path / "run.parquet", **(OPTIONS | options))
    assert replay(tmp_path / "run.parquet", task).difference == 0.0
    return run


def epoch_of(task: Task, batches: int, first: int = 0) -> list[torch.Tensor]:
    return [task.batch_of(number, 0, 0)[0] for number in range(first, first + batches)]


def reversed_samples(samples: list[Any]) -> Any:
    return torch.utils.data.default_collate(samples[::-1])


@pytest.mark.parametrize("drop_last", [True, False])
def test_a_loader_that_shuffles_gives_its_batches_in_a_seeded_order(drop_last: bool, tmp_path: Path) -> None:
    loader = DataLoader(data(70), batch_size=16, shuffle=True, drop_last=drop_last, collate_fn=reversed_samples)
    task = Task(network, nn.functional.mse_loss, loader)
    batches = epoch_of(task, len(loader))
    assert [len(batch) for batch in batches] == [len(x) for x, _ in loader]
    seen = torch.cat(batches)
    if not drop_last:
        assert torch.equal(seen.sort(0).values, data(70).tensors[0].sort(0).values)
    again = torch.cat(epoch_of(task, len(loader), first=len(loader)))
    assert not torch.equal(seen, again)
    alone = Task(network, nn.functional.mse_loss, data(70), batch_size=16)
    assert torch.equal(alone.batch_of(0, 0, 0)[0].flip(0), batches[0])  # its collate function is used
    assert repr(task) != repr(alone)
    assert ("drop_last=False" in repr(task)) == (not drop_last)
    replays(task, tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 16},  # in order
        {"sampler": SequentialSampler(data(70)), "batch_size": 16, "drop_last": True},
        {"batch_sampler": BatchSampler(SequentialSampler(data(70)), 32, drop_last=False)},
        {"batch_size": None},  # samples that are batches already
        {"sampler": BatchSampler(SequentialSampler(data(70)), 8, drop_last=False), "batch_size": None},
    ],
    ids=["in order", "sampler", "batch sampler", "no batches", "batches by index"],
)
def test_a_loader_in_order_gives_exactly_its_batches_every_epoch(options: dict[str, Any], tmp_path: Path) -> None:
    loader = DataLoader(data(70), **options)
    task = Task(nn.Linear(3, 1), nn.functional.mse_loss, loader)
    for epoch in range(2):
        for number, (x, y) in enumerate(loader):
            got = task.batch_of(epoch * len(loader) + number, 0, 0)
            assert torch.equal(x, got[0])
            assert torch.equal(y, got[1])
    assert task.steps_of(3) == 3 * len(loader)
    replays(task, tmp_path, lr=0.001)


def test_a_loader_with_a_random_sampler_is_seeded_by_the_run(tmp_path: Path) -> None:
    weights = WeightedRandomSampler([1.0] * 8 + [0.0] * 62, 70, generator=torch.Generator())
    task = Task(network, nn.functional.mse_loss, DataLoader(data(70), batch_size=16, sampler=weights))
    drawn = torch.cat(epoch_of(task, 4))
    assert torch.isin(drawn, data(70).tensors[0][:8]).all()
    some = DataLoader(data(70), batch_size=5, sampler=RandomSampler(data(70), num_samples=20))
    assert Task(network, nn.functional.mse_loss, some).steps_of(2) == 8
    replays(task, tmp_path)


def test_a_sampler_of_whole_batches_does_not_take_a_batch_size() -> None:
    whole = BatchSampler(SequentialSampler(data(70)), 8, drop_last=False)
    assert len(Task(network, nn.functional.mse_loss, data(70), sampler=whole).batch_of(0, 0, 0)[0]) == 8
    with pytest.raises(ValueError, match="The sampler gives whole batches, of its own size: leave out batch_size="):
        Task(network, nn.functional.mse_loss, data(70), sampler=whole, batch_size=16)
    own = Task(network, nn.functional.mse_loss, data(70), sampler=list(whole), batch_size=16)
    with pytest.raises(ValueError, match="leave out batch_size="):
        own.batch_of(0, 0, 0)


def test_what_a_loader_has_for_its_own_processes_is_not_used_and_said_so() -> None:
    with pytest.warns(UserWarning, match="The DataLoader's num_workers is not used"):
        Task(network, nn.functional.mse_loss, DataLoader(data(), batch_size=8, num_workers=2))


@pytest.mark.parametrize(
    ("epochs", "options", "steps"),
    [
        (1, {"batch_size": 16}, 5),  # 70 samples: the last batch begins the next epoch
        (2, {"batch_size": 16}, 9),
        (0.5, {"batch_size": 16}, 3),
        (0.01, {"batch_size": 16}, 1),
        (2, {"batch_size": 7, "accumulate": 5}, 4),
        (1, {"batch_size": 16, "sampler": "independent"}, 5),
        (3, {"batch_size": 16, "sampler": SequentialSampler(data(70))}, 12),  # a sampler leaves out what is left over
    ],
)
def test_epochs_are_counted_in_batches_rounded_up(epochs: float, options: dict[str, Any], steps: int) -> None:
    run = lc.fit(network(), nn.functional.mse_loss, data(70), epochs=epochs, engine="inline", **OPTIONS, **options)
    assert run.server.arrivals == steps


def test_epochs_need_a_dataset_and_work_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="quadratic has none: pass steps="):
        lc.fit(lc.problems.quadratic(), epochs=2, lr=0.1)
    own = ["train", str(ROOT / "examples" / "own_model.py") + ":task", "--engine", "inline"]
    assert main([*own, "--epochs", "0.1"]) == 0
    printed = capsys.readouterr().out
    task = lc.cli.train.load_task(own[1])
    assert f"{task.steps_of(0.1)} contributions" in printed
    assert main([*own, "--epochs", "1", "--steps", "5"]) == 2
    assert "got both" in capsys.readouterr().err


class Named(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Samples as dicts, as tokenizers return them."""

    def __len__(self) -> int:
        return 128

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        x, y = data()[index]
        return {"inputs": x, "labels": y}


class OwnLoss(nn.Module):
    """A model in the style of Hugging Face: called with the batch, it returns its loss too."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer, self.kind = nn.Linear(3, 1), kind

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.layer(inputs)
        loss = None if labels is None or self.kind == "none" else nn.functional.mse_loss(logits, labels)
        if self.kind == "dict":
            return {"loss": loss, "logits": logits}
        return {"tensor": loss, "logits": logits, "tuple": (loss, logits)}.get(
            self.kind, SimpleNamespace(loss=loss, logits=logits)
        )


@pytest.mark.parametrize("samples", [Named(), data()], ids=["dicts", "tuples"])
@pytest.mark.parametrize("kind", ["object", "dict", "tensor"])
def test_a_model_may_return_its_own_loss(kind: str, samples: Any, tmp_path: Path) -> None:
    run = replays(Task(OwnLoss(kind), dataset=samples), tmp_path, method="momentum", lr=0.1)
    same = lc.fit(
        Task(nn.Sequential(OwnLoss(kind).layer), nn.functional.mse_loss, data()), steps=1, engine="inline", **OPTIONS
    )
    assert same.final["train_loss"] > 0
    assert run.history["train_loss"][-1] < run.history["train_loss"][1]


@pytest.mark.parametrize(
    ("model", "loss", "samples", "words"),
    [
        (OwnLoss("logits"), None, Named(), r"it returned a tensor of shape \(32, 1\): pass loss_fn"),
        (OwnLoss("tuple"), None, Named(), "it returned a tuple of 2: pass loss_fn"),
        (OwnLoss("none"), None, Named(), "whose loss is None; are the labels in the batch"),
        (nn.Linear(3, 1), None, data(), r"called with the whole batch, a list of 2.*\(too many positional"),
        (nn.Linear(3, 1), None, Named(), "a dict with the keys 'inputs', 'labels', and that does not fit its forward"),
        (nn.Linear(3, 1), nn.functional.mse_loss, Named(), r"needs batches \(inputs, targets\), got a dict with the k"),
        (OwnLoss("dict"), nn.MSELoss(), data(), "the model returned a dict with the keys 'loss', 'logits': write loss"),
        (OwnLoss("object"), nn.functional.mse_loss, data(), "the model returned a SimpleNamespace: write loss_fn"),
    ],
)
def test_what_a_model_returns_is_named_where_it_is_no_loss(model: Any, loss: Any, samples: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"The task raised on its first jobs: TypeError: .*{words}"):
        lc.fit(model, loss, samples, steps=5, engine="inline", **OPTIONS)


def of_model(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(batch[0]).nothing  # type: ignore[no-any-return]


HOW_IT_IS_CALLED = "a loss of your own is called as loss_fn(model, batch); only losses of torch get (output, target)"


@pytest.mark.parametrize(
    ("loss", "hint"),
    [
        (lambda p, t: ((p - t) ** 2).mean(), True),
        (lambda output, target: nn.functional.mse_loss(output, target), True),
        (of_model, False),
    ],
)
def test_a_loss_written_for_output_and_target_is_told_how_it_is_called(loss: Any, hint: bool) -> None:
    with pytest.raises(ValueError, match=r"first .*: (TypeError|AttributeError): ") as caught:
        lc.fit(nn.Linear(3, 1), loss, data(), steps=5, engine="inline", **OPTIONS)
    assert (HOW_IT_IS_CALLED in str(caught.value)) is hint


class Mismatched(nn.Linear):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs[:, :2])  # the error is raised in torch


@pytest.mark.parametrize("loss", [nn.functional.mse_loss, lambda p, t: nn.functional.mse_loss(p, t)])
def test_an_error_names_the_last_line_of_the_users_code(loss: Any) -> None:
    with pytest.raises(ValueError, match=rf"first jobs: .* \({re.escape(__file__)}, line \d+\)"):
        lc.fit(Mismatched(3, 1), loss, data(), steps=5, engine="inline", **OPTIONS)


def test_the_class_of_a_loss_is_refused() -> None:
    with pytest.raises(TypeError, match=r"the class nn\.MSELoss \(pass nn\.MSELoss\(\), an instance\)"):
        Task(nn.Linear(3, 1), nn.MSELoss, data())


def by_sign_of_dict(batch: Any) -> int:
    return int(batch["inputs"].sum() > 0)


def test_everything_together_replays_to_the_bit_on_processes(tmp_path: Path) -> None:
    loader = DataLoader(Named(), batch_size=8, shuffle=True)
    task = Task(
        OwnLoss("object"), dataset=loader, accumulate=3, autocast="bfloat16", clip_norm=1.0, group_fn=by_sign_of_dict,
        groups=("minus", "plus"),
    )  # fmt: skip
    run = replays(task, tmp_path, engine="local", steps=30, method="ordered-mu2")
    assert set(run.trace.group.tolist()) == {0, 1}
    assert "accumulate=3" in repr(task)
    assert "autocast='bfloat16'" in repr(task)


def test_autocast_computes_in_bfloat16_and_trains_in_float32(tmp_path: Path) -> None:
    seen = []

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        output = model(batch[0])
        seen.append(output.dtype)
        return nn.functional.mse_loss(output.float(), batch[1])

    states = []
    for autocast in (None, "bfloat16", torch.bfloat16):
        seen.clear()
        run = replays(Task(nn.Linear(3, 1), loss, data(), autocast=autocast), tmp_path)
        assert set(seen) == {torch.bfloat16 if autocast else torch.float32}
        assert run.state["weight"].dtype == torch.float32
        states.append(run.state["weight"])
    assert not torch.equal(states[0], states[1])


def test_a_run_with_autocast_is_another_run(tmp_path: Path) -> None:
    model = nn.Linear(3, 1)
    options: dict[str, Any] = {"steps": 4, "engine": "inline", "checkpoint": tmp_path, **OPTIONS}
    lc.fit(Task(model, nn.functional.mse_loss, data()), **options)
    for change in ({"autocast": "bfloat16"}, {"accumulate": 2}):
        with pytest.raises(ValueError, match="another run"):
            lc.fit(Task(model, nn.functional.mse_loss, data(), **change), **options)


@pytest.mark.parametrize("sampler", [None, SequentialSampler(data(120))], ids=["epochs", "sampler"])
def test_micro_batches_are_one_large_batch_to_rounding(sampler: Any, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    x, y = (part.double() for part in data(120).tensors)
    samples = torch.utils.data.TensorDataset(x, y)
    small = Task(model, nn.functional.mse_loss, samples, batch_size=5, accumulate=4, sampler=sampler, clip_norm=0.5)
    large = Task(model, nn.functional.mse_loss, samples, batch_size=20, sampler=sampler, clip_norm=0.5)
    runs = [replays(task, tmp_path, steps=15, method="ordered-mu2") for task in (small, large)]
    for name in runs[0].state:
        assert torch.allclose(runs[0].state[name], runs[1].state[name], rtol=1e-9, atol=1e-12)
    assert runs[0].history["train_loss"][-1] == pytest.approx(runs[1].history["train_loss"][-1], rel=1e-9)
    assert small.describe_samples(1, 0) == large.describe_samples(1, 0)


def test_micro_batches_have_seeds_of_their_own_and_right_batch_norm_statistics(tmp_path: Path) -> None:
    """Dropout differs between the parts of a ticket, and the running averages see every part once."""
    masks: list[torch.Tensor] = []

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        model.zero_grad(set_to_none=len(masks) % 2 == 0)  # which must not clear what earlier parts have added
        masks.append(nn.functional.dropout(torch.ones(64)))
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    task = Task(network, loss, data(), batch_size=16, accumulate=3)
    run = lc.fit(task, method="momentum", lr=0.02, beta=1.0, steps=2, workers=1, engine="inline")
    assert len(masks) == 6
    assert len({tuple(mask.tolist()) for mask in masks}) == 6
    model = network()
    for number in range(2):
        for _, (x, _) in task.micro_batches(number, 0, 0):
            model[1](model[0](x)) if number == 0 else None
    layer = lc.fit(task, method="momentum", lr=1e-30, steps=1, workers=1, engine="inline")
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.allclose(layer.state[f"1.{name}"].double(), model[1].get_buffer(name).double(), rtol=1e-5), name
    assert run.state["1.num_batches_tracked"] == 6


def test_independent_parts_are_drawn_apart_and_the_slowest_part_is_the_group() -> None:
    task = Task(network, nn.functional.mse_loss, data(), batch_size=4, sampler="independent", accumulate=8,
                group_fn=by_sign, groups=("minus", "plus"))  # fmt: skip
    parts = task.micro_batches(3, 12345, 0)
    assert len({tuple(batch[0].flatten().tolist()) for _, batch in parts}) == 8
    assert parts[0][0] == 12345
    assert task.group_of(3, 12345) == max(by_sign(batch) for _, batch in parts) == 1
    assert all(torch.equal(a[0], b[0]) for (_, a), (_, b) in zip(parts, task.micro_batches(3, 12345, 0), strict=True))


def test_a_task_used_with_two_seeds_shuffles_twice() -> None:
    task = Task(nn.Linear(3, 1), nn.functional.mse_loss, data())
    runs = [lc.fit(task, steps=4, engine="inline", seed=seed, **OPTIONS) for seed in (0, 1, 0)]
    assert not torch.equal(runs[0].state["weight"], runs[1].state["weight"])
    assert torch.equal(runs[0].state["weight"], runs[2].state["weight"])


def test_arguments_of_the_task_reach_it_through_fit() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = nn.Linear(3, 1)
        direct = lc.fit(
            model,
            nn.functional.mse_loss,
            data(),
            accumulate=2,
            autocast="bfloat16",
            steps=3,
            engine="inline",
            **OPTIONS,
        )
    task = Task(nn.Linear(3, 1), nn.functional.mse_loss, data())
    assert direct.server.arrivals == 3
    for name, value in (("accumulate", 1), ("autocast", None)):
        with pytest.raises(ValueError, match=f"{name} belongs to the task"):
            lc.fit(task, steps=3, engine="inline", **OPTIONS, **{name: value})
