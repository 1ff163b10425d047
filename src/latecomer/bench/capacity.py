"""The capacity of one server: workers and updates per second, from costs, bandwidth and gradient duration."""

from __future__ import annotations

import heapq
import importlib.util
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .._util.checks import AT_LEAST_ZERO, POSITIVE, whole_number
from .._util.extras import needs
from ..core.server_cost import update_seconds

__all__ = ["Capacity", "Costs", "capacity", "measure_costs", "simulated_rate"]


@dataclass(frozen=True)
class Costs:
    """Costs of an update on the server, in seconds.

    Args:
        update: Per parameter: counting an arrival, applying it and writing the next point.
        wire: Per byte through the network stack and the encryption; 0 if memory is shared.
        fixed: Per update, independent of its size: messages, bookkeeping.

    Examples:
        >>> capacity(Costs(update=1e-9, wire=0.0, fixed=1e-4), [1000], gigabits=10, gradient=1.0)[0].limit
        'update'
    """

    update: float
    wire: float
    fixed: float

    def __post_init__(self) -> None:
        for name in ("update", "wire", "fixed"):
            AT_LEAST_ZERO.check(name, getattr(self, name))


@dataclass(frozen=True)
class Capacity:
    """The capacity of one server for a model.

    Attributes:
        size: Number of parameters.
        bf16: Whether points and gradients are sent as bfloat16.
        rate: Updates per second at which the server saturates.
        limit: What saturates: ``"update"``, ``"encryption"`` or ``"bandwidth"``.
        workers: Number of workers at which it saturates; more only lengthen the delays.

    Examples:
        >>> costs = Costs(update=1e-9, wire=0.0, fixed=0.0)
        >>> capacity(costs, sizes=[10_000_000], gigabits=10, gradient=0.1)[0].limit
        'bandwidth'
    """

    size: int
    bf16: bool
    rate: float
    limit: str
    workers: float


def capacity(
    costs: Costs, sizes: Sequence[int], gigabits: float, gradient: float, points: int = 1, dtype: int = 4
) -> list[Capacity]:
    """Compute where one server saturates, for every size with full precision and with bfloat16.

    Points and gradients are sent at the same time, so the larger direction counts. Processor and network of the server
    overlap, so the slower of them sets the rate. A worker is busy for a gradient, both transfers and the update between
    them.

    Args:
        costs: Costs of an update.
        sizes: Numbers of parameters.
        gigabits: Bandwidth of the server's network, in gigabits per second each way.
        gradient: Seconds per gradient on a worker.
        points: Points per ticket: 2 for methods such as mu2.
        dtype: Bytes per parameter.

    Examples:
        >>> table = capacity(Costs(0.0, 0.0, 0.0), sizes=[10_000_000], gigabits=10, gradient=0.1)
        >>> [round(row.rate, 2) for row in table]
        [31.25, 62.5]
        >>> [round(row.workers, 1) for row in table]
        [5.1, 8.2]
    """
    POSITIVE.check("gigabits", gigabits)
    POSITIVE.check("gradient", gradient)
    whole_number("points", points, least=1)
    whole_number("dtype", dtype, least=1)
    if not len(sizes):
        raise ValueError("Invalid sizes: [] (expected at least one number of parameters)")
    rows = []
    for size in sizes:
        whole_number("size", size, least=1)
        for bf16 in (False, True):
            up = size * (2 if bf16 else dtype)
            down = points * up
            byte = 8 / (gigabits * 1e9)
            needs = {
                "update": costs.fixed + costs.update * size,
                "encryption": costs.wire * (up + down),
                "bandwidth": max(up, down) * byte,
            }
            limit = max(needs, key=lambda name: needs[name])
            slowest = max(needs[limit], 1e-12)
            trip = gradient + needs["update"] + (up + down) * (byte + 2 * costs.wire)
            rows.append(Capacity(size, bf16, 1 / slowest, limit, max(1.0, trip / slowest)))
    return rows


def simulated_rate(
    workers: int, gradient: float, service: float, transfer: float = 0.0, arrivals: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Simulate workers that queue for one server; return updates per second and the mean delay.

    Durations of gradients are exponential: irregular enough that a queue forms before the server is always busy.

    Args:
        workers: Number of workers.
        gradient: Mean seconds of a gradient.
        service: Seconds per update on the server.
        transfer: Seconds of both transfers.
        arrivals: Number of updates.
        seed: Draws the durations.

    Examples:
        >>> rate, delay = simulated_rate(4, gradient=1.0, service=0.001)
        >>> round(rate), round(delay)
        (4, 3)
        >>> round(simulated_rate(100, gradient=1.0, service=0.1)[0], 1)
        10.0
    """
    whole_number("workers", workers, least=1)
    whole_number("arrivals", arrivals, least=1)
    POSITIVE.check("gradient", gradient)
    AT_LEAST_ZERO.check("service", service)
    AT_LEAST_ZERO.check("transfer", transfer)
    rng = np.random.default_rng(seed)
    waiting = [(float(duration) + transfer, 0) for duration in rng.exponential(gradient, workers)]
    heapq.heapify(waiting)
    now, delays = 0.0, 0
    for update in range(arrivals):
        arrived, version = heapq.heappop(waiting)
        now = max(now, arrived) + service
        delays += update - version
        heapq.heappush(waiting, (now + transfer + float(rng.exponential(gradient)), update + 1))
    return arrivals / now, delays / arrivals


def measure_costs(size: int = 1_000_000, updates: int = 50, fixed: float = 2e-4) -> Costs:
    """Measure the server's update and the encrypted connection on this machine; the latter needs pyzmq.

    Args:
        size: Number of parameters to measure with.
        updates: Number of updates.
        fixed: Seconds of bookkeeping and messages per update; `benchmarks/ray_engine.py` measures it with a small
            model.

    Examples:
        >>> measure_costs(size=1000, updates=3).update > 0
        True
    """
    whole_number("size", size, least=1)
    whole_number("updates", updates, least=1)
    costs = Costs(0.0, 0.0, fixed)  # checks `fixed` before the measurement
    costs = replace(costs, update=update_seconds(size, updates) / size)
    if importlib.util.find_spec("zmq") is not None:
        costs = replace(costs, wire=_wire_seconds(4 * size, max(3, updates // 5)) / (8 * size))
    return costs


def _wire_seconds(length: int, rounds: int) -> float:
    """Return the seconds of one message each way over an encrypted connection within this machine, both ends."""
    with needs("ray", "pyzmq", "Measuring the encrypted connection"):
        import zmq

    context = zmq.Context()
    keys, client_keys = zmq.curve_keypair(), zmq.curve_keypair()
    server: Any = context.socket(zmq.PAIR)
    server.curve_server, server.curve_publickey, server.curve_secretkey, server.linger = True, *keys, 0
    port = server.bind_to_random_port("tcp://127.0.0.1")
    client: Any = context.socket(zmq.PAIR)
    client.curve_serverkey, client.curve_publickey, client.curve_secretkey, client.linger = keys[0], *client_keys, 0
    client.connect(f"tcp://127.0.0.1:{port}")

    def echo() -> None:
        for _ in range(rounds + 1):
            client.send(client.recv(copy=False), copy=False)

    thread = threading.Thread(target=echo)
    thread.start()
    data, times = bytearray(length), []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        server.send(data, copy=False)
        server.recv(copy=False)
        times.append(time.perf_counter() - start)
    thread.join()
    context.destroy()
    return float(np.median(times[1:])) / 2  # a round trip is two messages
