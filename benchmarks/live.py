"""What a live page costs: arrivals per second with a page open, over those without, in alternating runs.

python benchmarks/live.py --pairs 5 --steps 4000
"""

from __future__ import annotations

import argparse
import http.client
import statistics
import threading
import time

import latecomer as lc


class Watched(lc.monitor.Live):
    """A live page that somebody has open."""

    def __init__(self) -> None:
        super().__init__(announce=None)
        self.bytes = 0

    def started(self, run):  # type: ignore[no-untyped-def]
        super().started(run)
        threading.Thread(target=self._read, args=(self.url,), daemon=True).start()

    def _read(self, url: str) -> None:
        connection = http.client.HTTPConnection(url.removeprefix("http://").rstrip("/"), timeout=60)
        connection.request("GET", "/events")
        for line in connection.getresponse():
            self.bytes += len(line)


class Clock(lc.training.Callback):
    """Measures the CPU time of this process from the first to the last arrival."""

    def arrived(self, run, ticket, outcome, loss):  # type: ignore[no-untyped-def]
        if outcome.arrival == 1:
            self.begun = time.process_time()
        self.seconds = time.process_time() - self.begun


def measured(problem: lc.problems.Problem, steps: int, live: Watched | None) -> tuple[float, float]:
    """Return CPU seconds of the server's process, and arrivals per second."""
    clock = Clock()
    run = lc.fit(
        problem, method="catch-up", lr=0.02, workers=2, steps=steps, evaluate_every=steps // 10,
        callbacks=[clock] if live is None else [live, clock],
    )  # fmt: skip
    return clock.seconds, steps / run.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--problem", choices=["quadratic", "digits"], default="digits")
    given = parser.parse_args()
    make = {"quadratic": lc.problems.quadratic, "digits": lambda: lc.problems.digits(network="mlp", cubic=False)}
    problem, ratios, sent = make[given.problem](), [], 0
    measured(problem, 200, None)  # the first run imports and compiles
    for _ in range(given.pairs):
        live = Watched()
        (without, slow), (with_page, fast) = measured(problem, given.steps, None), measured(problem, given.steps, live)
        ratios.append(with_page / without)
        sent += live.bytes
        print(
            f"{given.problem}: {without:.2f} s of CPU without, {with_page:.2f} s with a page open; "
            f"{slow:,.0f} and {fast:,.0f} arrivals per second"
        )
    print(f"median {statistics.median(ratios):.3f}, from {min(ratios):.3f} to {max(ratios):.3f}; {sent:,} bytes sent")


if __name__ == "__main__":
    main()
