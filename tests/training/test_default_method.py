"""Which method `fit` and the command take where none is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import latecomer as lc
from engine_tasks import regression
from latecomer.cli.main import main
from latecomer.training import replay

OWN = ["train", str(Path(__file__).parents[2] / "examples" / "own_model.py") + ":task"]
GROUPS: dict[str, Any] = {
    "none": (None, "rate-free"),
    "by name": ({"*bias": {"weight_decay": 0.1}, "*": {}}, "rate-free"),
    "by name with a rate": ({"*": {"lr": 0.05}}, "balanced-catch-up"),
    "one stands still": ({"*bias": {"lr": 0.0}, "*": {}}, "rate-free"),
    "by a function": (lambda model: [{"params": list(model.parameters()), "weight_decay": 0.1}], "rate-free"),
    "by a function with a rate": (
        lambda model: [{"params": list(model.parameters()), "lr": 0.05}],
        "balanced-catch-up",
    ),
}


@pytest.mark.parametrize("groups", GROUPS)
def test_without_a_learning_rate_the_default_has_none(groups: str, tmp_path: Path) -> None:
    """A learning rate would be a mere factor for it, so whoever gives one gets the method that takes it."""
    given, expected = GROUPS[groups]
    options: dict[str, Any] = {"engine": "inline", "steps": 160, "param_groups": given}
    path = tmp_path / "run.parquet"
    assert lc.fit(regression(), record=path, **options).method == expected
    assert replay(path, regression()).difference == 0.0
    assert lc.fit(regression(), lr=None, **options).method == expected
    assert lc.fit(regression(), lr=0.05, **options).method == "balanced-catch-up"


def test_a_learning_rate_for_some_groups_alone_is_not_guessed_at() -> None:
    with pytest.raises(ValueError, match="Some param groups have an lr and others have none: pass lr= for these"):
        lc.fit(regression(), engine="inline", steps=10, param_groups={"*bias": {"lr": 0.1}, "*": {}})


def test_the_command_has_the_same_default(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--engine", "inline", "--steps", "160", "--json"]
    for more, expected in ([], "rate-free"), (["--set", "lr=0.01"], "balanced-catch-up"):
        assert main([*OWN, *options, *more]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found["method"], found["options"]) == (expected, {"lr": 0.01} if more else {})
    assert main([*OWN, *options[:-1], "--method", "momentum"]) == 0
    assert "momentum (lr=0.02) on " in capsys.readouterr().out  # the command's own default is on the screen


def test_a_run_of_few_updates_is_told_that_they_are_too_few() -> None:
    with pytest.warns(UserWarning, match="rate-free needs some hundred updates to find its steps: for a run of 20"):
        lc.fit(regression(), engine="inline", steps=20)
