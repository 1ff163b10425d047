"""Parameters with their shapes and groups: what a group says replaces what fit was given, on every way to train."""

import copy
import warnings

import pytest
import torch
from torch import nn

import latecomer as lc
from latecomer.training import Task, replay
from support import OPTIONS

DATA_SEED = 0


class Net(nn.Module):
    """A tied embedding, a norm, biases, a frozen layer, and a part in bfloat16 if wanted."""

    def __init__(self, mixed: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embedding, self.norm, self.body = nn.Embedding(11, 8), nn.LayerNorm(8), nn.Linear(8, 8)
        self.frozen, self.head = nn.Linear(8, 8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen.requires_grad_(False)
        if mixed:
            self.body.bfloat16()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(self.embedding(x))
        h = h + self.body(h.to(self.body.weight.dtype)).to(h.dtype)
        return self.head(self.frozen(h))


def data() -> torch.utils.data.TensorDataset:
    x = torch.randint(0, 11, (256,), generator=torch.Generator().manual_seed(DATA_SEED))
    return torch.utils.data.TensorDataset(x, (3 * x + 1) % 11)


def task(mixed: bool = False, **arguments) -> Task:
    return Task(Net(mixed), nn.CrossEntropyLoss(), data(), **arguments)


NO_DECAY = {"*norm*": {"weight_decay": 0.0}, "*bias": {"weight_decay": 0.0}, "*": {}}


def fit(what=None, **arguments):
    arguments = {"method": "momentum", "lr": 0.05, "workers": 3, "engine": "inline", "steps": 60, **arguments}
    return lc.fit(task() if what is None else what, **arguments)


def groups_of(run) -> list[dict]:
    return [
        {**group, "shapes": [tuple(p.shape) for p in group["params"]]} for group in run.server.optimizer.param_groups
    ]


def test_patterns_make_groups_and_the_rest_comes_from_fit():
    run = fit(param_groups={**NO_DECAY, "*": {"lr": 0.01}}, weight_decay=0.1)
    found = [(group["lr"], group["weight_decay"], group["shapes"]) for group in groups_of(run)]
    assert found == [(0.05, 0.0, [(8,), (8,)]), (0.05, 0.0, [(8,)]), (0.01, 0.1, [(11, 8), (8, 8)])]


def test_a_function_makes_the_same_groups_as_patterns_and_trains_to_the_same_bits():
    def groups(model: nn.Module) -> list[dict]:
        named = list(model.named_parameters())  # with the frozen ones, as people write it
        small = [p for name, p in named if p.dim() < 2]
        return [{"params": small, "weight_decay": 0.0}, {"params": [(n, p) for n, p in named if p.dim() >= 2]}]

    by_function = fit(param_groups=groups, weight_decay=0.1)
    by_pattern = fit(
        param_groups={"*norm*": {"weight_decay": 0.0}, "*bias": {"weight_decay": 0.0}, "*": {}}, weight_decay=0.1
    )
    assert len(groups_of(by_function)) == 2
    for name, value in by_function.state.items():
        assert torch.equal(value, by_pattern.state[name]), name
    undecayed = fit(weight_decay=0.1)
    assert not torch.equal(undecayed.state["norm.weight"], by_function.state["norm.weight"])


@pytest.mark.parametrize("method", lc.optim.METHODS)
def test_a_learning_rate_of_zero_leaves_parameters_as_they_are_to_the_bit(method):
    start = Net()
    with torch.no_grad():
        start.body.weight.view(-1)[:3] = torch.tensor([-0.0, 1e-42, 7.0])
    options = {**OPTIONS.get(method, {}), "lr": 1e-4}
    run = fit(
        Task(start, nn.CrossEntropyLoss(), data()),
        method=method,
        param_groups={"body*": {"lr": 0.0}, "*": {}},
        **options,
    )
    for name in ("body.weight", "body.bias"):
        kept = dict(start.named_parameters())[name].detach()
        assert torch.equal(kept.view(torch.int32), run.state[name].view(torch.int32)), name
    assert not torch.equal(run.state["norm.weight"], start.norm.weight)


@pytest.mark.parametrize("method", [m for m in lc.optim.METHODS if "clip" not in m and "balanced" not in m])
def test_one_group_gives_what_the_flat_parameter_gives(method):
    """The clipped rules are left out: they add up norms, and a sum in another order is another one."""
    options = {**OPTIONS.get(method, {}), "lr": 1e-3}
    flat, shaped = (fit(method=method, param_groups=groups, **options) for groups in (None, {"*": {}}))
    for name, value in flat.state.items():
        torch.testing.assert_close(shaped.state[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mixed", [False, True], ids=["float32", "mixed"])
@pytest.mark.parametrize("engine", ["inline", "local"])
def test_groups_are_recorded_replayed_and_resumed(tmp_path, engine, mixed):
    arguments = {
        "method": "catch-up-adamw",
        "lr": 0.01,
        "weight_decay": 0.1,
        "param_groups": NO_DECAY,
        "engine": engine,
    }
    run = fit(task(mixed), **arguments, record=tmp_path / "run.parquet", checkpoint=tmp_path / "saved")
    again = replay(run.record, task(mixed))
    assert again.difference == 0.0, again.verdict
    assert [g["weight_decay"] for g in again.run.server.optimizer.param_groups] == [0.0, 0.0, 0.1]
    other = replay(run.record, task(mixed), method="ordered-momentum", lr=0.01)
    assert [g["weight_decay"] for g in other.run.server.optimizer.param_groups] == [0.0, 0.0, 0.1]
    longer = fit(task(mixed), **arguments, steps=80, checkpoint=tmp_path / "saved")
    assert longer.resumed_at == 60
    assert longer.state["body.weight"].dtype is (torch.bfloat16 if mixed else torch.float32)
    with pytest.raises(ValueError, match="another run"):
        fit(task(mixed), **{**arguments, "param_groups": {"*": {}}}, steps=80, checkpoint=tmp_path / "saved")


def test_a_replay_with_other_groups_is_another_run(tmp_path):
    run = fit(param_groups=NO_DECAY, weight_decay=0.1, record=tmp_path / "run.parquet")
    assert replay(run.record, task(), param_groups={"*": {}}).difference is None
    assert replay(run.record, task(), param_groups=NO_DECAY).difference == 0.0


def test_a_replay_with_the_same_groups_is_the_same_run(tmp_path):
    groups = {"*bias": {"betas": (0.5, 0.9)}, "*": {}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = fit(method=torch.optim.AdamW, record=tmp_path / "r.parquet", param_groups=groups)
        again = replay(run.record, task(), method=torch.optim.AdamW, param_groups=groups)
    assert again.difference == 0.0


def test_simulation_takes_groups_too():
    trace = lc.delays.Constant(workers=3).trace(steps=60, seed=0)
    runs = [
        lc.simulate(task(), "momentum", trace, lr=0.05, param_groups=groups)
        for groups in ({"*": {}}, {"body*": {"lr": 0.5}, "*": {}})
    ]
    assert not torch.equal(runs[0].state["body.weight"], runs[1].state["body.weight"])


def test_a_function_gets_parameters_in_their_shapes_or_the_groups():
    given = []

    def optimizer(params):
        given.append(list(params))
        return lc.optim.Momentum(given[-1], lr=0.05)

    lc.fit(task(), method=optimizer, engine="inline", steps=10)
    assert [tuple(p.shape) for p in given[-1]] == [(11, 8), (8,), (8,), (8, 8), (8,)]
    lc.fit(task(), method=optimizer, engine="inline", steps=10, param_groups={"body*": {"lr": 0.0}, "*": {}})
    assert [sorted(group) for group in given[-1]] == [["lr", "params"], ["params"]]


@pytest.mark.parametrize("groups", [None, {"*.bias": {"weight_decay": 0.0}, "*": {}}])
def test_a_function_may_sort_the_parameters_into_groups_of_its_own(tmp_path, groups):
    """Two layers of one shape: a gradient that reached the other one would raise nothing."""

    def optimizer(given):
        params = [p for each in given for p in (each["params"] if isinstance(each, dict) else [each])]
        return torch.optim.AdamW([{"params": params[:0:-1]}, {"params": params[:1], "lr": 0.1}], lr=0.01)

    batches = []

    def loss(model, batch):
        batches.append(batch)
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(64, 4)
    own = Task(copy.deepcopy(model), loss, torch.utils.data.TensorDataset(x, x.roll(1, 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = lc.fit(
            own, method=optimizer, workers=1, engine="inline", steps=30, record=tmp_path / "r.parquet",
            param_groups=groups,
        )  # fmt: skip
        plain = batches[:30]
        assert replay(run.record, own, method=optimizer).difference == 0.0
    names = [name for name, _ in model.named_parameters()]
    order = names if groups is None else sorted(names, key=lambda name: not name.endswith("bias"))
    torch_optimizer = optimizer([model.get_parameter(name) for name in order])
    for inputs, targets in plain:
        torch_optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        torch_optimizer.step()
    for name, value in model.state_dict().items():
        assert torch.equal(run.state[name], value), name


def test_matrix_rules_of_torch_see_matrices():
    """Adafactor keeps a row and a column per matrix; given a flat vector it would keep every element."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = lc.fit(task(), method=torch.optim.Adafactor, lr=0.01, engine="inline", steps=10)
    states = [run.server.optimizer.state[p] for p in run.server.optimizer.param_groups[0]["params"] if p.dim() == 2]
    assert all({"row_var", "col_var"} <= state.keys() for state in states)


def test_every_group_may_bring_the_learning_rate():
    run = lc.fit(
        task(), method="momentum", engine="inline", steps=10, param_groups={"body*": {"lr": 0.1}, "*": {"lr": 0.2}}
    )
    assert [group["lr"] for group in groups_of(run)] == [0.1, 0.2]


def test_parameters_of_mixed_dtypes_train_in_the_widest():
    """Steps too small for bfloat16 add up on the server, where the parameters are float32."""
    start = Net(mixed=True)
    run = fit(Task(start, nn.CrossEntropyLoss(), data()), method="async-sgd", lr=1e-3, steps=200)
    assert run.server.parameters[0].dtype is torch.float32
    assert run.state["body.weight"].dtype is torch.bfloat16
    assert not torch.equal(run.state["body.weight"], start.body.weight)
    assert run.state["norm.weight"].dtype is torch.float32


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"norm*": {}}, "'embedding.weight' and 2 more is in no group"),
        (
            {"*": {}, "norm*": {"lr": 0.1}},
            "'norm\\*' of param_groups gets no parameter: earlier patterns match 'norm.weight'",
        ),
        ({"layer*": {}, "*": {}}, "no parameter has such a name"),
        ({"*": {"momentum": 0.9}}, "momentum"),
        ({"*": {"lr": -1.0}}, "Invalid lr value: -1"),
        ({"*": {"output": "uniform"}}, "'output'"),
        ({"*": 3}, "expected a name pattern and a dict of options"),
        ({"*": {"params": []}}, "'params'"),
        ("*bias", "Invalid param_groups: str"),
        (3, "Invalid param_groups: int"),
        (lambda model: 3, "param_groups raised TypeError"),
        (lambda model: [model.body.weight], "expected a dict with 'params'"),
        (lambda model: [{"params": [torch.nn.Parameter(torch.ones(1))]}], "no parameter of the model"),
        (lambda model: [{"params": model.body.parameters()}], "is in no group"),
        (lambda model: [{"params": model.parameters()}, {"params": [model.body.bias]}], "'body.bias' is in two groups"),
    ],
)
def test_wrong_groups_get_a_sentence(groups, message):
    with pytest.raises((TypeError, ValueError), match=message):
        fit(param_groups=groups)
