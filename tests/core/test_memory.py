"""User code that moves the model's memory, or never moves its parameters, is told so."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import latecomer as lc
from engine_tasks import data, network
from latecomer.core.flat import FlatModule
from latecomer.core.gradient import Contributor

TRACE = lc.delays.Constant(workers=2).trace(steps=12, seed=0)


def loss_after(harm: Callable[[Any], Any], at: str = "start") -> Callable[[nn.Module, Any], torch.Tensor]:
    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        if at == "start":
            harm(model)
            batch = [part.to(next(model.parameters()).dtype) for part in batch]
        value = nn.functional.mse_loss(model(batch[0]), batch[1])
        if at == "end":
            harm(model)
        return value

    return loss


def register_again(model: Any) -> None:
    model[0].weight = nn.Parameter(model[0].weight.detach().clone())


def replace_layer(model: Any) -> None:
    model[3] = nn.Linear(8, 1)


def new_memory(model: Any) -> None:
    model[0].weight.data = model[0].weight.data.clone()


def overwrite_on_conversion(model: Any) -> None:
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        model.double()
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)


HARM: dict[str, tuple[Callable[[Any], Any], str]] = {
    "bfloat16": (lambda model: model.bfloat16(), r"The loss put the parameter '0.weight' into other memory \(torch.bf"),
    "to": (lambda model: model.to(torch.float64), "parameter '0.weight' into other memory .*autocast='bfloat16'"),
    "half": (lambda model: model.half(), r"\(torch.float16 on cpu\)"),
    "a device": (lambda model: model.to("meta"), "The loss replaced the parameter 'weight'"),
    "one layer": (lambda model: model[3].double(), "parameter '3.weight' into other memory"),
    "same dtype": (new_memory, "parameter '0.weight' into other memory"),
    "registered again": (register_again, "The loss replaced the parameter 'weight'"),
    "another layer": (replace_layer, "The loss replaced the layer '3'"),
    "overwritten": (overwrite_on_conversion, "The loss replaced the parameter 'weight'"),
}


@pytest.mark.parametrize(
    ("name", "at"),  # a layer in float64 or on another device is refused by torch itself at the start
    [*((name, "end") for name in HARM), *((name, "start") for name in HARM if name not in ("one layer", "a device"))],
)
def test_a_loss_that_moves_the_model_is_refused(name: str, at: str) -> None:
    harm, words = HARM[name]
    task = lc.Task(network, loss_after(harm, at), data(), batch_size=16)
    with pytest.raises(ValueError, match=words):
        lc.simulate(task, "momentum", TRACE, lr=0.1)
    with pytest.raises(ValueError, match=f"The task raised on its first jobs: ValueError: .*{words}"):
        lc.fit(task, lr=0.1, steps=12, engine="inline")


@pytest.mark.parametrize("name", ["bfloat16", "same dtype", "registered again"])
def test_an_evaluation_that_moves_the_model_is_refused(name: str) -> None:
    harm, words = HARM[name]

    def evaluate(model: nn.Module) -> dict[str, float]:
        harm(model)
        return {"score": 0.0}

    task = lc.Task(network, nn.functional.mse_loss, data(), batch_size=16, evaluate=evaluate)
    words = words.replace("The loss", "evaluate")
    with pytest.raises(ValueError, match=words):
        lc.simulate(task, "momentum", TRACE, lr=0.1)
    with pytest.raises(ValueError, match=f"The evaluation of the task raised: ValueError: .*{words}"):
        lc.fit(task, lr=0.1, steps=12, engine="inline")


def harmless(model: nn.Module, batch: Any) -> torch.Tensor:
    model.to("cpu").float().train()
    model.zero_grad()
    copy.deepcopy(model).bfloat16()
    state = {name: value.clone() for name, value in model.named_parameters()}
    torch.func.functional_call(model, state, (batch[0],))
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def plain(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def test_what_moves_nothing_is_allowed_and_changes_nothing() -> None:
    still = nn.Sequential(nn.Linear(3, 8), nn.Linear(8, 1))
    runs = [
        lc.simulate(lc.Task(still, loss, data(), batch_size=16), "momentum", TRACE, lr=0.1)
        for loss in (plain, harmless)
    ]
    assert all(torch.equal(runs[0].state[name], runs[1].state[name]) for name in runs[0].state)


def test_after_the_error_the_same_module_computes_the_same_gradient() -> None:
    """One bad job must not spoil the next one of the same worker: batch normalisation and frozen layers included."""
    model = network()
    model[0].bias.requires_grad_(False)
    flat = FlatModule(model)
    batch = data()[:16]
    expected, found = torch.empty_like(flat.x), torch.empty_like(flat.x)
    model.eval()  # the same statistics for both
    value = flat.gradient(flat.x, lambda module: plain(module, batch), expected)
    for name in HARM:
        harm = HARM[name][0]
        with pytest.raises(ValueError, match="so training would go on without it"):
            flat.gradient(flat.x, lambda module, harm=harm: harm(module) or module[3].bias.sum(), found)
        with pytest.raises(ZeroDivisionError):
            flat.gradient(flat.x, lambda module, harm=harm: (harm(module), 1 / 0)[0], found)
        assert torch.equal(value, flat.gradient(flat.x, lambda module: plain(module, batch), found))
        assert torch.equal(expected, found)


def test_a_hook_that_takes_the_gradient_away_is_refused() -> None:
    model = nn.Linear(3, 1)
    model.weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    flat = FlatModule(model)
    with pytest.raises(ValueError, match="The loss or a hook put a gradient into other memory"):
        flat.gradient(flat.x, lambda module: plain(module, data()[:16]), torch.empty_like(flat.x))


class Far(lc.problems.Quadratic):
    """A problem whose loss does not depend on the parameters."""

    def gradient(self, x: torch.Tensor, batch: Any, out: torch.Tensor) -> bool:
        out.zero_()
        return True


def unmoved(train: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train()
    return [str(each.message) for each in caught if "no parameter has changed" in str(each.message)]


def test_parameters_that_never_move_are_reported_once_also_over_a_restart(tmp_path: Path) -> None:
    trace = lc.delays.Constant(workers=2).trace(steps=300, seed=0)
    far, moves = Far(), lc.problems.quadratic()
    assert len(unmoved(lambda: lc.simulate(far, "momentum", trace, lr=0.1))) == 1
    assert "(lr is now 0)" in unmoved(lambda: lc.simulate(moves, "momentum", trace, lr=1.0, scheduler=zero))[0]
    assert not unmoved(lambda: lc.simulate(moves, "momentum", trace, lr=0.1))
    assert not unmoved(lambda: lc.simulate(far, "momentum", short(), lr=1.0))

    class Stop(lc.training.Callback):
        def __init__(self, arrival: int) -> None:
            self.arrival = arrival

        def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
            if outcome.arrival == self.arrival:
                run.stop()

    options: dict[str, Any] = {"lr": 0.1, "engine": "inline", "steps": 300, "checkpoint": tmp_path, "workers": 1}
    found = [len(unmoved(lambda at=at: lc.fit(far, callbacks=[Stop(at)], **options))) for at in (60, 150, 290)]
    assert found == [0, 1, 0]


def zero(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 0.0)


def short() -> lc.Trace:
    return lc.delays.Constant(workers=2).trace(steps=99, seed=0)


def test_parameters_that_only_decay_are_reported() -> None:
    """A loss on another model: AdamW still shrinks the parameters."""
    other = nn.Linear(3, 1)
    data = torch.utils.data.TensorDataset(torch.ones(64, 3), torch.ones(64, 1))

    def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        return nn.functional.mse_loss(other(batch[0]), batch[1]) + 0.0 * model(batch[0]).sum()

    with pytest.warns(UserWarning, match="After 100 applied contributions no parameter has changed by a gradient"):
        lc.fit(nn.Linear(3, 1), loss, data, method="catch-up-adamw", steps=120, engine="inline")


@pytest.mark.parametrize("kind", ["loss", "max_norm"])
def test_parameters_that_the_loss_changes_in_place_are_refused(kind: str) -> None:
    model = nn.Sequential(nn.Embedding(9, 2, max_norm=0.1 if kind == "max_norm" else None), nn.Linear(2, 1))
    data = torch.utils.data.TensorDataset(torch.arange(8))

    def loss(model: nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
        if kind == "loss":
            with torch.no_grad():
                model[0].weight.clamp_(-0.01, 0.01)
        return model(batch[0]).square().mean()

    with pytest.raises(ValueError, match=r"changes the parameter '0.weight' in place, which would be lost"):
        lc.fit(model, loss, data, batch_size=4, lr=0.1, steps=20, engine="inline")


def test_a_run_that_rounds_to_bfloat16_uses_the_same_memory_for_every_job() -> None:
    """The model keeps views of every point that it has been at, so a new one per job would stay for good."""
    model = FlatModule(network())
    problem = lc.Task(network, nn.functional.mse_loss, data())
    compute, out = Contributor(problem, model, points=2, bf16=True), torch.zeros_like(model.x, requires_grad=False)
    points = [model.x.detach().clone() for _ in range(2)]
    seen = []
    for number in range(5):
        compute(points, out, number, number, 0, version=number + 2, here=1.0, before=-0.5)
        seen.append(len(model._views))
    assert seen[0] == seen[-1]
    assert torch.equal(points[0], model.x)  # other tickets start from it too
    assert torch.equal(out, out.bfloat16().float())
