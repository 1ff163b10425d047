"""The candidates on real processes: digits whose slow class really takes longer."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from latecomer._util.checks import AT_LEAST_ZERO
from latecomer.engines import Engine
from latecomer.problems import Digits
from latecomer.training import fit

from .candidates import CANDIDATES

__all__ = ["SlowDigits", "real"]

RATES = (0.003, 0.03, 0.06, 0.1)
"""The first is for AdamW, whose learning rates are on another scale."""


class SlowDigits(Digits):
    """Digits with a pause in every slow batch, so that it is late on real workers.

    Args:
        pause: Seconds of the pause.
        **options: Arguments of `Digits`.

    Examples:
        >>> problem = SlowDigits(pause=0.0, network="mlp")
        >>> problem.loss(problem.model(0), problem.batch(3, group=1)).item() > 0
        True
    """

    def __init__(self, pause: float = 0.02, **options: Any) -> None:
        super().__init__(**options)
        self.pause = AT_LEAST_ZERO.check("pause", pause)

    def __repr__(self) -> str:
        return f"SlowDigits(pause={self.pause}, {super().__repr__()})"

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the cross-entropy, after a pause if the batch is slow."""
        if int(batch[1][0]) in self.slow_classes:
            time.sleep(self.pause)
        return super().loss(model, batch)


def real(
    names: Sequence[str] = tuple(CANDIDATES),
    *,
    rates: Sequence[float] = RATES,
    steps: int = 1000,
    workers: int = 3,
    engine: str | Engine = "local",
    pause: float = 0.02,
    seed: int = 100,
) -> Iterator[dict[str, Any]]:
    """Train every candidate on workers that are really late on slow samples; one row per candidate and learning rate.

    Entries: ``candidate``, ``lr``, ``f1``, ``f1_slow`` and the mean delays ``slow`` and ``fast``.

    Args:
        names: Names in `CANDIDATES`.
        rates: Learning rates.
        steps: Contributions per run.
        workers: Real workers.
        engine: The engine.
        pause: Seconds that a slow batch takes longer.
        seed: Draws the samples, initialises the model.

    Examples:
        >>> rows = real(("momentum",), rates=(0.03,), steps=20, workers=2, engine="inline", pause=0.0)
        >>> [row["candidate"] for row in rows]
        ['momentum']
    """
    if not (names and rates):
        raise ValueError("There is nothing to train: name a candidate and a learning rate")
    problem = SlowDigits(pause, network="mlp")
    for name in names:
        for lr in rates:
            candidate = CANDIDATES[name]
            result = fit(
                problem, method=candidate.method, workers=workers, engine=engine, steps=steps, seed=seed, lr=lr,
                evaluate_every=steps, **candidate.options,
            )  # fmt: skip
            last, slow = result.history.row(-1, named=True), result.trace.group > 0
            yield {
                "candidate": name,
                "lr": lr,
                "f1": last["f1"],
                "f1_slow": last["f1_slow"],
                "slow": float(result.trace.delay[slow].mean()) if slow.any() else None,
                "fast": float(result.trace.delay[~slow].mean()),
            }
