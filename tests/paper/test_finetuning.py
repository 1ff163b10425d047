"""The CIFAR-10 stage decides on the validation split, in order, and judges on fresh seeds; weights are kept by hash."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from evidence_support import InMemory, fill
from latecomer.cli.pretrain import Pretrain
from latecomer.experiments import RunSpec
from latecomer.paper import finetuning, pretraining, weights
from latecomer.paper.evidence import CLAIMS, PAPER, judge
from latecomer.paper.finetuning import FineTuning, fine_tuned_rows, settled
from latecomer.paper.pretraining import STAND_INS, TASKS, pretrain
from latecomer.paper.stages import stage_sweeps
from latecomer.paper.weights import Weights
from latecomer.problems.resnet import ResNet18, read_weights

ROTATIONS = Weights("r", "a" * 64, 0.25, "rotations", STAND_INS["rotations"])
CONTRAST = Weights("c", "b" * 64, 0.25, "contrast", STAND_INS["contrast"])


def score(run: RunSpec) -> float:
    """Frozen averages are better, and so is the learning rate 0.02; ordered mu2 is best."""
    away = abs(np.log(run.options["lr"] / 0.02)) + abs(np.log(run.options.get("beta", 0.05) / 0.05))
    frozen = 0.05 if run.problem_options["frozen_batch_norm"] else 0.0
    return float(0.6 + frozen - 0.01 * away + 0.02 * (run.method == "ordered-mu2") + 0.0001 * (run.seed % 7))


def test_the_stage_goes_from_the_stand_in_to_the_pairs_that_judge() -> None:
    store = InMemory()
    names = fill(store, "cifar10", score, [ROTATIONS])
    assert names == [
        "cifar10-reach 3", "cifar10-reach 3", "cifar10-batch-norm 6", "cifar10-batch-norm 6", "cifar10-coarse 27",
        "cifar10-fine 31", "cifar10-final 42", "cifar10-judge 140",
    ]  # fmt: skip
    made = settled(store, [ROTATIONS])
    assert made is not None
    assert made.frozen
    assert set(made.choice) == set(PAPER)
    assert {options["lr"] for options in made.choice.values()} == {0.02}  # a neighbour of a coarse rate
    assert made.trained == round(0.9 * (0.67 + 0.0001), 2)
    assert made.reached == pytest.approx(
        score(next(iter(stage_sweeps("cifar10", store, [ROTATIONS]))).runs()[1]) + 0.05
    )
    for sweep in stage_sweeps("cifar10", store, [ROTATIONS]):
        judging = sweep.name == "cifar10-judge"
        assert sweep.problem_options["split"] == ("test" if judging else "validation")
        assert sweep.problem_options["weights"] == ROTATIONS.name
        assert (min(sweep.seeds) >= 1000) == judging
        assert sweep.delay_options["workers"] == (1 if sweep.name == "cifar10-reach" else 5)
    rows = fine_tuned_rows(store, made)
    assert rows is not None
    ten = next(claim for claim in CLAIMS if claim.number == 10)
    assert judge(ten, rows).pairs == 20


def test_the_choice_costs_about_two_hours() -> None:
    """By the measured 54 and 28 updates per CPU second; what two sweeps share is made once."""
    store = InMemory()
    fill(store, "cifar10", score, [ROTATIONS])
    hours = {"choose": 0.0, "judge": 0.0}
    counted: set[str] = set()
    for sweep in stage_sweeps("cifar10", store, [ROTATIONS]):
        for run in sweep.runs():
            if run.key not in counted and sweep.name != "cifar10-reach":
                counted.add(run.key)
                part = "judge" if sweep.name == "cifar10-judge" else "choose"
                hours[part] += run.steps / (28 if run.method.endswith("mu2") else 54) / 3600
    assert 1.8 < hours["choose"] < 2.3
    assert 3.0 < hours["judge"] < 3.7


def test_a_stand_in_that_reaches_too_little_calls_for_the_next_and_the_best_is_taken() -> None:
    def weak(run: RunSpec) -> float:
        return score(run) - (0.2 if run.problem_options["weights"] == ROTATIONS.name else 0.15)

    store = InMemory()
    with pytest.raises(ValueError, match=r"rotations reach F1 0.4\d+, below 0.6; .*--task contrast"):
        fill(store, "cifar10", weak, [ROTATIONS])
    fill(store, "cifar10", weak, [ROTATIONS, CONTRAST])
    made = settled(store, [ROTATIONS, CONTRAST])
    assert made is not None
    assert made.weights == CONTRAST  # neither reaches 0.6; it is the better one
    with pytest.raises(ValueError, match=r"the stage 'cifar10' needs weights: run .*--task rotations"):
        list(stage_sweeps("cifar10", InMemory()))
    assert settled(InMemory(), []) is None
    assert settled(InMemory(), [ROTATIONS]) is None


def test_given_weights_are_the_first_choice_at_their_own_width() -> None:
    given = Weights("", "c" * 64, 1.0, weights.GIVEN)
    first = next(iter(stage_sweeps("cifar10", InMemory(), [ROTATIONS, given])))
    assert (first.name, first.problem_options["weights"]) == ("cifar10-batch-norm", given.name)
    assert first.problem_options["width"] == 1.0


def test_nothing_is_chosen_on_test_images(monkeypatch: pytest.MonkeyPatch) -> None:
    made = FineTuning(ROTATIONS, 0.7, True, {"momentum": {"lr": 0.01}}, 0.6)
    with pytest.raises(ValueError, match="not on the validation split"):
        finetuning.ranking(finetuning.judge_sweep(made), InMemory())


# ---- pre-training ---------------------------------------------------------------------------------------------------


@pytest.fixture
def images(monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """CIFAR-10 without CIFAR-10: a bright upper left corner says which way an image was turned."""
    draws = np.random.default_rng(0)
    train = draws.integers(0, 100, (5100, 3, 32, 32), dtype=np.uint8)
    train[:, :, :16, :16] += 120
    labels = np.zeros(5100, dtype=np.int64)
    arrays = {"train_images": train, "train_labels": labels, "test_images": train[:9], "test_labels": labels[:9]}
    monkeypatch.setattr("latecomer.data.load", lambda name, data_dir=None: arrays)
    monkeypatch.setattr("latecomer.data.get", lambda name: Path())
    monkeypatch.setattr(pretraining, "_EVALUATED", 32)
    monkeypatch.setattr(pretraining, "_EVALUATIONS", 4)
    return train


def test_rotations_turn_images_and_never_use_those_held_out(images: np.ndarray) -> None:
    task = pretraining.Rotations(width=0.0625, batch_size=64)
    turned, quarters = task.batch(5, 0)
    bright = turned[:, 0].reshape(64, 2, 16, 2, 16).mean((2, 4)).flatten(1)  # means of the four quadrants
    where = bright.argmax(1)  # 0 and 1 above, 2 and 3 below
    corner, flipped = (torch.tensor(places)[quarters] for places in ([0, 2, 3, 1], [1, 0, 2, 3]))
    assert bool(((where == corner) | (where == flipped)).all())
    assert set(quarters.tolist()) == {0, 1, 2, 3}
    assert len(task._images) == 100  # the last 5,000 are held out
    again = task.batch(5, 0)
    assert torch.equal(turned, again[0])


@pytest.mark.parametrize("name", sorted(TASKS))
def test_pre_training_learns_and_goes_on_from_a_checkpoint(name: str, images: np.ndarray, tmp_path: Path) -> None:
    task = TASKS[name](width=0.0625, batch_size=16)

    class StopError(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done >= 20:
            raise StopError

    straight = pretrain(task, 40, seed=1)
    with pytest.raises(StopError):
        pretrain(task, 40, seed=1, checkpoint=tmp_path, progress=stop)
    resumed = pretrain(task, 40, seed=1, checkpoint=tmp_path)
    assert resumed.resumed_at > 0
    assert all(torch.equal(straight.state[key], resumed.state[key]) for key in straight.state)
    assert straight.final["loss"] < straight.history["loss"][0]


def test_the_command_writes_weights_that_fit_and_their_hash(
    images: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.console import Console

    monkeypatch.setenv("LATECOMER_DATA", str(tmp_path / "data"))
    folder = tmp_path / "weights"
    command = Pretrain(steps=3, width=0.0625, folder=folder, checkpoints=tmp_path / "unfinished")
    with Console(record=True, width=200) as console:
        command.run(console)
        command.run(console)
    assert "is there already" in console.export_text()
    (entry,) = weights.read_list(folder)
    assert (entry.task, entry.steps, entry.width) == ("rotations", 3, 0.0625)
    content = (folder / entry.file).read_bytes()
    assert hashlib.sha256(content).hexdigest() == entry.sha256
    assert entry.sha256[:12] in entry.file
    state, _ = read_weights(folder / entry.file)
    assert {name: value.shape for name, value in state.items()} == {
        name: value.shape for name, value in ResNet18(width=0.0625, num_classes=4).state_dict().items()
    }
    weights.install(folder)
    assert (tmp_path / "data" / "weights" / entry.sha256).read_bytes() == content
    other = tmp_path / "given.safetensors"
    safetensors.torch.save_file(ResNet18(width=0.125).state_dict(), other)
    Pretrain(given=other, folder=folder).run(Console(quiet=True))
    assert [(each.task, each.width) for each in weights.read_list(folder)] == [("rotations", 0.0625), ("given", 0.125)]
    (folder / entry.file).write_bytes(other.read_bytes())
    with pytest.raises(ValueError, match="is not the file of"):
        weights.install(folder)
    (folder / weights.LIST).write_text(json.dumps([{"file": "x"}]))
    with pytest.raises(ValueError, match="is damaged"):
        weights.read_list(folder)


def test_views_of_an_image_differ_and_match_their_own(images: np.ndarray) -> None:
    task = pretraining.Contrast(width=0.0625, batch_size=8)
    first, second = task.batch(3, 0)
    assert first.shape == second.shape == (8, 3, 32, 32)
    assert not torch.equal(first, second)

    class Same(torch.nn.Module):
        """Features that tell images apart and views not."""

        def forward(self, x: Any) -> Any:
            return torch.eye(64)[torch.arange(len(x)) % 8]

    perfect, random = (task.loss(model, (first, second)).item() for model in (Same(), task.model(0)))
    assert perfect < 0.1 < random
