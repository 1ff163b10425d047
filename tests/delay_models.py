"""One delay model of each kind, for tests that must hold for all of them."""

from __future__ import annotations

from collections.abc import Callable

import latecomer as lc
from latecomer.delays import Constant, DataDependent, SampleCost, Uniform, WorkerSpeeds

MODELS: dict[str, Callable[[], lc.delays.DelayModel]] = {
    "data-dependent": lambda: DataDependent(workers=4, slow_share=0.25),
    "data-dependent-literal": lambda: DataDependent(workers=4, slow_share=0.25, exact=False),
    "data-independent": lambda: DataDependent(workers=4, slow_share=0.25, dependent=False),
    "three-groups": lambda: DataDependent(workers=4, shares=(0.5, 0.3, 0.2), weights=(1, 1, 5, 2)),
    "uniform": lambda: Uniform(workers=4, slow_share=0.25),
    "constant": lambda: Constant(workers=4, slow_share=0.25),
    "worker-speeds": lambda: WorkerSpeeds([1.0, 2.0, 3.0, 3.0], slow_share=0.25),
    "worker-speeds-random": lambda: WorkerSpeeds([1.0, 2.0, 3.0, 3.0], "exponential", slow_share=0.25),
    "sample-cost": lambda: SampleCost(workers=4, cost=(1.0, 5.0), slow_share=0.25),
    "sample-cost-function": lambda: SampleCost(
        workers=4, cost=lambda worker, group, sample: 1 + worker + 5 * group + sample / 2**64, slow_share=0.25
    ),
}
