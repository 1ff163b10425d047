"""CPU seconds for a trace of a million arrivals with a thousand workers, by delay model, checks included.

python benchmarks/traces.py
"""

from __future__ import annotations

import time

from rich.console import Console
from rich.table import Table

from latecomer import delays

WORKERS, STEPS = 1000, 1_000_000


def main() -> None:
    speeds = [1.0 + 0.01 * i for i in range(WORKERS)]
    models: dict[str, delays.DelayModel] = {
        "DataDependent": delays.DataDependent(WORKERS, 0.1),
        "DataDependent, literal": delays.DataDependent(WORKERS, 0.1, exact=False),
        "Uniform": delays.Uniform(WORKERS, 0.1),
        "Constant": delays.Constant(WORKERS, 0.1),
        "WorkerSpeeds, fixed": delays.WorkerSpeeds(speeds),
        "WorkerSpeeds, exponential": delays.WorkerSpeeds(speeds, "exponential"),
        "SampleCost (heap)": delays.SampleCost(WORKERS, (1.0, 100.0), 0.1),
    }
    table = Table("model", "CPU seconds", title=f"{STEPS:,} arrivals, {WORKERS:,} workers")
    for name, model in models.items():
        start = time.process_time()
        model.trace(STEPS, seed=0)
        table.add_row(name, f"{time.process_time() - start:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
