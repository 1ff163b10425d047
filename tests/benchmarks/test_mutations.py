"""A small part of benchmarks/mutations: damaged files and wrong arguments get a sentence or the same result."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

import latecomer as lc
from benchmarks.mutations import judge
from benchmarks.mutations.__main__ import main
from benchmarks.mutations.files import fitted
from benchmarks.mutations.judge import BAD, one, run
from benchmarks.mutations.target import Target, damage


def test_300_mutations_end_well() -> None:
    findings, targets = run(300, seed=1)
    assert [vars(each) for each in findings if each.outcome in BAD] == []
    assert all(each.counts.total() for each in targets)


def test_what_ends_badly_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge is judged: each kind of failure is seen as what it is."""

    def outcome(use: object, expected: object = None) -> str:
        target = Target("t", lambda rng, place: ("", use), expected)  # type: ignore[arg-type, return-value]
        return one(0, 0, [target], tmp_path).outcome

    def spins() -> None:
        while True:
            pass

    monkeypatch.setattr(judge, "SECONDS", 0.2)
    assert outcome(lambda: 1, 1) == "same"
    assert outcome(lambda: 2, 1) == "different"
    assert outcome(lambda: "silent", 1) == "silent"
    assert outcome(lambda: [][0]) == "raw"
    assert outcome(lambda: int("x")) == "raw"
    assert outcome(lambda: lc.fit(3, steps=1)) == "refused"
    assert outcome(spins) == "hang"


def test_arrivals_that_are_lost_without_a_word_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("latecomer.training.saver.Saver._warn_of_damage", lambda *_: None)
    target = fitted(tmp_path)
    for number in range(40):
        one(number, 0, [target], tmp_path)
    assert target.counts["silent"] > 2
    assert target.counts["silent"] + target.counts["same"] + target.counts["warned"] == 40


def test_the_command_writes_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["mutations", "--count", "3", "--out", str(tmp_path / "out")])
    assert main() == 0
    lines = (tmp_path / "out" / "mutations.md").read_text().splitlines()
    assert lines[0] == "# 3 mutations with seed 0, 0 failures"
    total = next(line for line in lines if line.startswith("| all |"))
    assert sum(map(int, total.strip("| ").split(" | ")[1:])) == 3


def test_a_mutation_follows_from_its_number(tmp_path: Path) -> None:
    shown = [damage(random.Random("0 7"), path) for path in made(tmp_path)]
    assert shown[0].removesuffix("a") == shown[1].removesuffix("b")


def made(folder: Path) -> list[Path]:
    for name in ("a", "b"):
        (folder / name).write_bytes(bytes(range(100)))
    return [folder / "a", folder / "b"]
