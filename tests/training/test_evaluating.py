"""Evaluator in a process of its own: what happens when it raises, dies, or takes a name that is taken."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import latecomer as lc
from engine_tasks import regression, score
from latecomer.engines import Event, Slot, WorkerSpec
from latecomer.engines.inline import InlineEngine
from latecomer.training import evaluator as evaluation
from latecomer.training import loop as driver_module

OPTIONS: dict[str, Any] = {"lr": 0.02, "workers": 2, "steps": 40, "evaluate_every": 10}


def raises(model: Any) -> dict[str, float]:
    raise KeyError("no such metric")


class RaisesLater:
    """Raises from the second time on."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, model: Any) -> dict[str, float]:
        self.times += 1
        if self.times > 1:
            raise KeyError("no such metric")
        return score(model)


def takes_a_name(model: Any) -> dict[str, float]:
    return {"train_loss": 1.0}


class KillEvaluator(lc.training.Callback):
    def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
        if outcome.arrival == 15:
            run.engine.kill(run.workers)


def test_an_evaluation_that_raises_at_once_ends_the_run_with_its_reason() -> None:
    with pytest.raises(ValueError, match=r"The evaluation of the task raised: KeyError: 'no such metric' \(.*line"):
        lc.fit(regression(evaluate=raises), engine="inline", **OPTIONS)


def test_an_evaluation_that_raises_later_leaves_its_row_without_metrics() -> None:
    with pytest.warns(UserWarning, match="An evaluation raised: KeyError"):
        result = lc.fit(regression(evaluate=RaisesLater()), engine="inline", **OPTIONS)
    assert result.history["loss"].is_null().to_list() == [False, True, True, True, True]


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_a_killed_evaluator_is_replaced_and_every_row_has_its_metrics(engine: str) -> None:
    result = lc.fit(regression(evaluate=score), engine=engine, callbacks=[KillEvaluator()], **OPTIONS)
    assert result.history["arrival"].to_list() == [0, 10, 20, 30, 40]
    assert result.history["loss"].null_count() == 0
    assert result.deaths == 0  # it is no worker


def test_metrics_may_not_take_the_names_of_columns() -> None:
    with pytest.raises(ValueError, match="may not return a metric named 'train_loss'"):
        lc.fit(regression(evaluate=takes_a_name), engine="inline", **OPTIONS)


def test_only_workers_can_be_killed_by_the_run() -> None:
    class Wrong(lc.training.Callback):
        def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
            run.kill(run.workers)

    with pytest.raises(ValueError, match=r"Invalid worker value: 2 \(there are 2 workers\)"):
        lc.fit(regression(), engine="inline", callbacks=[Wrong()], **OPTIONS)


class Done(InlineEngine):
    """Has finished all jobs when its events are read."""

    def events(self, timeout: float | None = None) -> list[Event]:
        found: list[Event] = []
        while self._waiting or self._events:
            found += super().events(timeout)
        return found


def test_a_slow_server_does_not_kill_workers_as_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reading of the clock is an hour later: the answers are there, but not read yet."""

    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            self.now += 3600.0
            return self.now

    monkeypatch.setattr(driver_module, "time", Clock())
    result = lc.fit(regression(), engine=Done(), timeout=1.0, **OPTIONS)
    assert (result.deaths, result.reissued) == (0, 0)


def test_one_failing_ticket_does_not_stop_a_run_even_as_the_first(tmp_path: Path) -> None:
    from engine_tasks import Trouble

    problem = Trouble(tmp_path, "raise", tickets=(0,), times=50)
    with pytest.warns(UserWarning, match="Ticket 0 .* failed 3 times"):
        result = lc.fit(problem, lr=0.01, workers=1, engine="inline", steps=20)
    assert list(result.given_up or ()) == [0]
    assert result.server.arrivals == 20


class Idle(lc.training.Callback):
    """Kills the evaluating worker at arrivals, when it has nothing to do."""

    def __init__(self, *arrivals: int) -> None:
        self.arrivals = arrivals

    def arrived(self, run: Any, ticket: Any, outcome: Any, loss: float) -> None:
        if outcome.arrival in self.arrivals:
            run.engine.kill(run.evaluator.seat)


def test_an_idle_evaluator_may_die_any_number_of_times() -> None:
    result = lc.fit(
        regression(evaluate=score), lr=0.05, workers=2, steps=60, evaluate_every=60, engine="inline",
        callbacks=[Idle(10, 20, 30, 40, 50)],
    )  # fmt: skip
    assert result.history["loss"].is_not_nan().all()


class Nobody(InlineEngine):
    """Nobody is there to evaluate until the server has nothing else to do."""

    def start(self, spec: WorkerSpec, seats: int, slots: int) -> Sequence[Slot]:
        made = super().start(spec, seats, slots)
        self.kept = [event for event in self._events if event.seat == seats - spec.evaluators]
        self._events = type(self._events)(event for event in self._events if event not in self.kept)
        return made

    def events(self, timeout: float | None = None) -> list[Event]:
        found = super().events(timeout)
        if not found:
            self._events.extend(self.kept)
            self.kept = []
        return found


def test_a_run_that_waits_for_its_evaluator_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "WAIT_WARNING", 0.0)
    with pytest.warns(UserWarning, match="The run is waiting for an evaluation.*a free core for one more process"):
        result = lc.fit(regression(evaluate=score), lr=0.05, workers=2, steps=20, evaluate_every=2, engine=Nobody())
    assert result.history.height == 11
    assert result.history["loss"].is_not_nan().all()
