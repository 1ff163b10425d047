"""What ``method=`` takes: a name, a class, a function of the parameters, a method; and how a name is registered."""

from __future__ import annotations

import copy
import functools
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import latecomer as lc
from latecomer.optim import METHODS, AsyncSGD, Method, Momentum, TorchOptimizer, as_method, register
from latecomer.optim import torch_optimizer as module

CALM = pytest.mark.filterwarnings("ignore:.*applies gradients as they come")


def simulated(method: Any, **options: Any) -> lc.Run:
    trace = lc.delays.DataDependent(4, 0.2).trace(80, 0)
    return lc.simulate(lc.problems.quadratic(), method, trace, evaluate_every=80, **options)


def fitted(method: Any, **options: Any) -> lc.Run:
    given = {"workers": 4, "engine": "inline", "steps": 80, **options}
    return lc.fit(lc.problems.quadratic(), method=method, **given)


both = pytest.mark.parametrize("train", [simulated, fitted])


def of_parameters(params: Any) -> Momentum:
    return Momentum(params, lr=0.1, beta=0.2)


class Mine(Momentum):
    """A rule of one's own."""


@both
def test_a_name_a_class_a_function_and_a_method_are_the_same_run(train: Any) -> None:
    by_name = train("momentum", lr=0.1, beta=0.2)
    for method, options, name in (
        (Momentum, {"lr": 0.1, "beta": 0.2}, "momentum"),
        (Mine, {"lr": 0.1, "beta": 0.2}, f"{__name__}.Mine"),
        (of_parameters, {}, f"{__name__}.of_parameters"),
        (functools.partial(Momentum, lr=0.1, beta=0.2), {}, "latecomer.optim.momentum.Momentum"),
        (METHODS["momentum"], {"lr": 0.1, "beta": 0.2}, "momentum"),
        (Method("mine", Mine), {"lr": 0.1, "beta": 0.2}, "mine"),
    ):
        run = train(method, **options)
        assert torch.equal(run.state["x"], by_name.state["x"]), method
        assert run.method == name


@both
@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        (of_parameters, {"lr": 0.1}, "is a function of the parameters, which brings its own options: set lr"),
        (Mine, {"lr": 0.1, "gamma": 2}, r"Mine has no option 'gamma' \(it has lr, beta"),
        (Mine, {}, "Mine needs a value for 'lr'"),
        (lambda params, lr: 0, {}, "needs a value for 'lr', and a function is called with the parameters alone"),
        (lambda params: 0, {}, "returned int, not an optimizer"),
        (lambda params: AsyncSGD([nn.Parameter(torch.zeros(1))], lr=0.1), {}, "exactly the parameters that"),
        (AsyncSGD([nn.Parameter(torch.zeros(1))], lr=0.1), {}, "one of class AsyncSGD that exists already"),
        (nn.Linear, {}, "expected a class of optimizers"),
        (7, {}, "Invalid method: 7 .expected a name that `latecomer methods` lists"),
        (torch.optim.LBFGS, {}, "LBFGS evaluates the loss several times per step"),
        (torch.optim.SparseAdam, {}, "SparseAdam needs sparse gradients"),
        (torch.optim.AdamW, {"beta": 0.1},
         r"AdamW has no option 'beta'( \(it has lr, betas|, and fit has .*: did you mean betas)"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_method_gets_a_sentence(train: Any, method: Any, options: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        train(method, **options)


def test_a_registered_name_is_one_of_the_methods(registry: dict[str, Any]) -> None:
    method = register("mine", Mine, influence=lambda delay, beta: (1 - beta) ** delay, source="here")
    assert METHODS["mine"] is method is as_method("mine")
    assert method.influence(2, beta=0.5, workers=3) == 0.25
    assert list(method.files) == [__file__]
    assert torch.equal(simulated("mine", lr=0.1).state["x"], simulated("momentum", lr=0.1).state["x"])
    with pytest.raises(ValueError, match=r"There is a method 'mine' already, with optimizer .*Mine: choose another"):
        register("mine", AsyncSGD)
    for replace in (False, True):
        with pytest.raises(ValueError, match="There is a method 'momentum' of the library already: choose another"):
            register("momentum", Mine, replace=replace)
    with pytest.raises(TypeError, match="does not support item assignment"):
        METHODS["other"] = method  # type: ignore[index]
    with pytest.raises(ValueError, match="The method plain declares no influence: either its weights"):
        register("plain", AsyncSGD).influence(1)
    assert METHODS["plain"].influence_formula == "not declared"


CELL = """
import latecomer as lc

class Rule(lc.optim.Momentum):
    factor = {factor}

method = lc.optim.register("cell", {optimizer}, policy={policy})
"""


def cell(
    factor: int, optimizer: str = "Rule", policy: str = "None", name: str = "__main__", file: str = "<cell>"
) -> Any:
    """Run a notebook's cell."""
    space: dict[str, Any] = {"__name__": name}
    exec(compile(CELL.format(factor=factor, optimizer=optimizer, policy=policy), file, "exec"), space)
    return space["method"].optimizer


def test_a_cell_can_be_run_again(registry: dict[str, Any]) -> None:
    for factor in (1, 1, 2):
        made = cell(factor)
        assert METHODS["cell"].optimizer is made
        assert METHODS["cell"].optimizer.factor == factor  # type: ignore[attr-defined]
    refused: list[dict[str, Any]] = [{"name": "other"}, {"optimizer": "lc.optim.AsyncSGD"}]
    refused += [{"policy": "lc.policy.Async"}, {"optimizer": "lambda params, lr: Rule(params, lr)"}]
    for other in refused:
        with pytest.raises(ValueError, match=r"'cell' already, with optimizer .*Rule: .*or pass replace=True"):
            cell(3, **other)
    assert METHODS["cell"].optimizer.factor == 2  # type: ignore[attr-defined]
    assert register("cell", Momentum, replace=True) is METHODS["cell"]


def test_two_lambdas_of_a_file_are_two_methods(registry: dict[str, Any]) -> None:
    rule = "lambda params, lr: Rule(params, lr)"
    cell(1, rule)
    cell(2, rule)  # of a cell they are one
    with pytest.raises(ValueError, match=r"'cell' already, with optimizer .*<lambda>: choose another name"):
        cell(3, rule, file=__file__)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("My Rule", Mine), "Invalid name of a method: 'My Rule' .expected lower-case words"),
        (("mine", 3), "Invalid optimizer: 3"),
        (("mine", Mine, 3), "Invalid policy: 3"),
        (("mine", Mine, None, 0.5), "Invalid influence: 0.5"),
        (("mine", max), "Invalid optimizer: <built-in function max>"),
        (("mine", Mine, int), "Invalid policy: <class 'int'>"),
        (("mine", Mine, None, max), "Invalid influence: <built-in function max>"),
        (("mine", Mine, lambda beta: 0), "Both the optimizer and the policy of mine have an option 'beta': rename one"),
    ],
)
def test_what_cannot_be_registered_gets_a_sentence(arguments: Any, words: str, registry: dict[str, Any]) -> None:
    name, optimizer, policy, influence = (*arguments, None, None)[:4]
    with pytest.raises((ValueError, TypeError), match=words):
        register(name, optimizer, policy=policy, influence=influence)
    assert "mine" not in METHODS


class AtMost(lc.policy.Policy):
    name = "at-most"

    def __init__(self, workers: int, threshold: int) -> None:
        super().__init__()
        self.workers, self.threshold = workers, threshold

    def receive(self, ticket: Any, delay: int) -> lc.policy.Decision:
        return lc.policy.Decision("apply" if delay <= self.threshold else "drop")


def test_options_go_to_the_optimizer_or_to_the_policy(registry: dict[str, Any]) -> None:
    method = register("at-most", Momentum, policy=AtMost)
    assert list(method.arguments)[-1] == "threshold"
    run = fitted("at-most", lr=0.1, threshold=1)
    assert repr(run.server.policy) == "AtMost(threshold=1, workers=4)"
    assert run.options == {"lr": 0.1, "threshold": 1}
    assert run.trace.status.tolist().count("dropped") > 10
    with pytest.raises(ValueError, match="at-most needs a value for 'threshold'"):
        fitted("at-most", lr=0.1)
    # A policy beside the method replaces its own, and then has the options.
    other = fitted("at-most", lr=0.1, policy=AtMost(4, 3))
    assert other.trace.status.tolist().count("dropped") == 0
    assert fitted("at-most", lr=0.1, sync=True).trace.header.policy == "synchronous"
    with pytest.raises(ValueError, match="at-most has no option 'threshold'"):
        fitted("at-most", lr=0.1, threshold=1, policy="synchronous")
    with pytest.raises(ValueError, match="sync=True is policy='synchronous', and policy='async' is given"):
        fitted("momentum", lr=0.1, sync=True, policy="async")
    trace = lc.delays.Constant(4).trace(30, 0, policy=AtMost(4, 2))
    problem = lc.problems.quadratic()
    assert lc.simulate(problem, "at-most", trace, lr=0.1, threshold=2).trace.digest == trace.digest
    with pytest.raises(ValueError, match=r"made with policy 'at-most', not 'async'.*policy=\.\.\."):
        lc.simulate(problem, "momentum", trace, lr=0.1)
    with pytest.raises(ValueError, match="The trace does not match its policy"):
        lc.simulate(problem, "at-most", trace, lr=0.1, threshold=1)


def test_a_function_resumes_only_with_the_options_it_had(tmp_path: Any) -> None:
    def at(lr: float) -> Any:
        return lambda params: Momentum(params, lr=lr)

    first = fitted(at(0.1), checkpoint=tmp_path)
    assert fitted(at(0.1), checkpoint=tmp_path).resumed_at == 80
    assert torch.equal(first.state["x"], fitted("momentum", lr=0.1).state["x"])
    with pytest.raises(ValueError, match=r"checkpoints of another run .with another options"):
        fitted(at(0.2), checkpoint=tmp_path)


@CALM
def test_a_record_of_a_function_needs_it_again(tmp_path: Any) -> None:
    problem, path = lc.problems.quadratic(), tmp_path / "run.parquet"
    adam = functools.partial(torch.optim.Adam, lr=0.01)
    fitted(adam, record=path)
    with pytest.raises(
        ValueError, match=r"recorded with torch.optim.adam.Adam, a class or function .*: pass method= again"
    ):
        lc.training.replay(path, problem)
    assert lc.training.replay(path, problem, method=adam).difference == 0.0
    other = lc.training.replay(path, problem, method=functools.partial(torch.optim.Adam, lr=0.02))
    assert other.difference
    assert "it was recorded with optimizer Adam [{" in other.verdict
    assert lc.training.replay(path, problem, method="momentum", lr=0.1).difference is None


# ---- optimizers of torch --------------------------------------------------------------------------------------------


def test_a_torch_optimizer_says_once_what_late_gradients_are_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_warned", set())
    with pytest.warns(UserWarning, match="AdamW applies gradients as they come: a late one enters as if it were fresh"):
        fitted(torch.optim.AdamW, lr=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted(torch.optim.AdamW, lr=0.01)


@CALM
def test_it_is_the_optimizer_of_torch_step_by_step() -> None:
    ours, theirs = (nn.Parameter(torch.ones(3)) for _ in range(2))
    opt, plain = TorchOptimizer(torch.optim.AdamW([ours], lr=0.1)), torch.optim.AdamW([theirs], lr=0.1)
    scheduler, other = (torch.optim.lr_scheduler.StepLR(o, 2, gamma=0.5) for o in (opt, plain))
    for t in range(6):
        theirs.grad = torch.full((3,), float(t))
        ours.grad = theirs.grad.clone()
        opt.step(delay=t // 2)
        plain.step()
        scheduler.step()
        other.step()
        assert torch.equal(ours, theirs)
    for again in (copy.deepcopy(opt), pickle.loads(pickle.dumps(opt))):
        assert (again.t, again.optimizer.state is again.state) == (6, True)
    with pytest.raises(ValueError, match="This AdamW has made steps already: pass a new one"):
        TorchOptimizer(plain)
    with pytest.raises(ValueError, match=r"This state_dict belongs to \['AdamW'\], this optimizer is \['SGD'\]"):
        TorchOptimizer(torch.optim.SGD([ours], lr=0.1)).load_state_dict(opt.state_dict())


def test_a_file_that_is_run_and_imported_registers_its_method_once(tmp_path: Path) -> None:
    (tmp_path / "both.py").write_text(
        "import latecomer as lc\n"
        "class Own(lc.optim.Momentum):\n    pass\n"
        "lc.optim.register('both', Own)\n"
        "if __name__ == '__main__':\n    import both\n    print(lc.optim.METHODS['both'].name)\n"
    )
    done = subprocess.run([sys.executable, "both.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "both\n"), done.stderr


def test_what_cannot_be_a_method_is_refused_when_it_is_registered() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"optimizer": lambda: 5}, "takes no parameters"),
        ({"optimizer": Momentum, "policy": object}, "Invalid policy"),
        ({"optimizer": Momentum, "source": 5}, "Invalid source: 5"),
    ]
    for arguments, message in cases:
        with pytest.raises(TypeError, match=message):
            register("refused", **arguments)
    assert "refused" not in METHODS

    class Unfinished(Momentum):
        def __init__(self, params: Any, lr: float) -> None:
            self.given = params

    with pytest.raises(TypeError, match=r"has no param groups: call super\(\).__init__"):
        as_method(Unfinished)([nn.Parameter(torch.ones(1))], lr=0.1)
