"""Where one server saturates: its arithmetic, and the checks of its arguments."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from latecomer.bench import Costs, capacity, measure_costs, simulated_rate
from latecomer.cli.main import main

BASE = ["bench", "capacity", "--sizes", "1000000", "--update-ns", "1", "--wire-ns", "1"]


@pytest.mark.parametrize("name", ["update", "wire", "fixed"])
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0])
def test_costs_are_numbers_from_zero_on(name: str, wrong: float) -> None:
    with pytest.raises(ValueError, match=f"Invalid {name} value"):
        Costs(**({"update": 0.0, "wire": 0.0, "fixed": 0.0} | {name: wrong}))


@pytest.mark.parametrize(
    "wrong",
    [{"points": 0}, {"dtype": 0}, {"sizes": []}, {"sizes": [0]}, {"gigabits": math.nan}, {"gradient": 0.0}],
)
def test_capacity_checks_its_arguments(wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {"sizes": [1000], "gigabits": 10.0, "gradient": 0.1}
    with pytest.raises(ValueError, match=r"Invalid .* \(expected"):
        capacity(Costs(1e-9, 0.0, 0.0), **(given | wrong))


@pytest.mark.parametrize(
    "wrong",
    [{"workers": 0}, {"arrivals": 0}, {"gradient": math.nan}, {"service": -1.0}, {"transfer": math.nan}],
)
def test_the_queue_checks_its_arguments(wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {"workers": 2, "gradient": 0.1, "service": 0.01}
    with pytest.raises(ValueError, match=r"Invalid .* \(expected"):
        simulated_rate(**(given | wrong))


@pytest.mark.parametrize("wrong", [{"size": 0}, {"updates": 0}, {"fixed": math.nan}])
def test_measuring_checks_its_arguments(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"Invalid .* \(expected"):
        measure_costs(**wrong)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["--wire-ns", "nan"], "Invalid --wire-ns value: nan"),
        (["--wire-ns", "-1"], "Invalid --wire-ns value: -1"),
        (["--update-ns", "nan"], "Invalid --update-ns value: nan"),
        (["--update-ns", "-1"], "Invalid --update-ns value: -1"),
        (["--fixed-us", "nan"], "Invalid --fixed-us value: nan"),
        (["--fixed-us", "-1"], "Invalid --fixed-us value: -1"),
        (["--points", "0"], "Invalid points value: 0"),
        (["--sizes"], "Invalid sizes: "),
        (["--gigabits", "nan"], "Invalid gigabits value: nan"),
    ],
)
def test_the_command_refuses_in_one_sentence(wrong: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["bench", "capacity", "--update-ns", "1", "--wire-ns", "1"] if wrong == ["--sizes"] else BASE
    assert main([*argv, *wrong]) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_the_table_names_the_command_that_makes_it_again(tmp_path: Path) -> None:
    for folder in ("first", "second"):
        assert main([*BASE, "--points", "2", "--fixed-us", "50", "--out", str(tmp_path / folder)]) == 0
    page = (tmp_path / "first" / "capacity.md").read_text()
    assert "--sizes 1000000 --points 2 --update-ns 1 --wire-ns 1 --fixed-us 50" in page
    assert page == (tmp_path / "second" / "capacity.md").read_text()
    assert json.loads((tmp_path / "first" / "capacity.json").read_text())


def test_encryption_limits_workers_elsewhere_before_the_wire_does() -> None:
    """What docs/scale.md says of ten gigabits: the wire alone would allow more than the encryption does."""
    (row, _) = capacity(Costs(update=1e-9, wire=1e-9, fixed=2e-4), [10_000_000], gigabits=10, gradient=0.1)
    assert (row.limit, round(row.rate, 1)) == ("encryption", 12.5)
    (row, _) = capacity(Costs(update=1e-9, wire=0.0, fixed=2e-4), [10_000_000], gigabits=10, gradient=0.1)
    assert (row.limit, round(row.rate, 1)) == ("bandwidth", 31.2)
