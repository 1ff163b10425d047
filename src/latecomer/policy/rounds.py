"""Policies that collect contributions for one update: synchronous rounds, mini-batches, buffers."""

from __future__ import annotations

from collections.abc import Sequence

from .._util.checks import checked_flag, whole_number
from .base import Decision, Policy, Ticket, late

__all__ = ["AsyncMiniBatch", "FedBuff", "Rennala", "RennalaStop", "Synchronous", "flat_buffer"]


class _Collecting(Policy):
    """Holds contributions, and flushes with every n-th of them; ``state["held"]`` counts those that are held."""

    _hold, _flush, _drop = Decision("hold"), Decision("flush"), Decision("drop")

    def _collect_fresh(self, n: int, delay: int) -> Decision:
        """Return what to do with a contribution of which only those at the newest parameters count."""
        return self._drop if delay else self._collect(n)

    def _collect(self, n: int) -> Decision:
        """Count a contribution, and return what to do with it."""
        held = (int(self.state.get("held", 0)) + 1) % n
        self.state["held"] = held
        return self._hold if held else self._flush


class Synchronous(_Collecting):
    """Synchronous data-parallel training: one update with the mean of ``workers`` contributions at one iterate.

    Args:
        workers: Number of contributions per update.

    Examples:
        >>> policy = Synchronous(2)
        >>> [policy.receive(Ticket(i, worker=i, version=1, seen=0, sample=0), delay=0).action for i in range(2)]
        ['hold', 'flush']
        >>> policy.may_start(in_flight=1), policy.may_start(in_flight=2)
        (True, False)
    """

    name = "synchronous"

    def __init__(self, workers: int) -> None:
        super().__init__()
        if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
            raise ValueError(f"Invalid workers value: {workers!r} (expected a whole number, at least 1)")
        self.workers = workers

    def receive(self, ticket: Ticket, delay: int) -> Decision:
        """Hold it, or flush if it is the last one of its round."""
        return self._collect(self.workers)

    def may_start(self, in_flight: int) -> bool:
        """Return whether this round needs more contributions."""
        return int(self.state.get("held", 0)) + in_flight < self.workers


class Rennala(_Collecting):
    """One update with the mean of the first S contributions that were computed at the newest parameters.

    Contributions from older parameters are dropped when they arrive, so nobody waits for a slow worker. The parameters
    stay as they are until S have come. `RennalaStop` cancels these jobs instead.

    Args:
        workers: Number of workers.
        S: Number of contributions per update; by default the number of workers.

    Examples:
        >>> policy = Rennala(workers=4, S=2)
        >>> ticket = Ticket(0, worker=0, version=1, seen=0, sample=0)
        >>> [policy.receive(ticket, delay).action for delay in (0, 1, 0)]
        ['hold', 'drop', 'flush']

    References:
        Tyurin, Richtarik, Optimal Time Complexities of Parallel Stochastic Optimization Methods, 2023,
        arXiv 2305.12387 (read in public code).
    """

    name = "rennala"

    def __init__(self, workers: int, S: int | None = None) -> None:
        super().__init__()
        self.S = whole_number("S", workers if S is None else S, least=1)

    def receive(self, ticket: Ticket, delay: int) -> Decision:
        """Drop it if it is late, else hold it; flush with the S-th."""
        return self._collect_fresh(self.S, delay)


class RennalaStop(Rennala):
    """Rennala with stops: an update cancels all jobs, and every worker starts again at the new parameters.

    So nothing arrives late. Public code of `Rennala` does this. Every update issues one ticket per worker.

    Args:
        workers: Number of workers.
        S: Number of contributions per update; by default the number of workers.

    Examples:
        >>> policy = RennalaStop(workers=4, S=2)
        >>> jobs = [Ticket(i, worker=i, version=1 + i // 2, seen=0, sample=0) for i in range(3)]
        >>> [ticket.number for ticket in policy.cancel(jobs, version=2)]
        [0, 1]

    References:
        ``RennalaSGD`` in ``asynchronous/algorithm.py`` of the repository vectozavr/ringmaster-lmo (read there).
    """

    name = "rennala-stop"

    def cancel(self, in_flight: Sequence[Ticket], version: int) -> Sequence[Ticket]:
        """Return the jobs that were started before the newest update."""
        return late(in_flight, version, 1)


class AsyncMiniBatch(_Collecting):
    """Asynchronous mini-batches around any rule: it gets the mean of the first B contributions at its parameters.

    The rule makes one step per B contributions and sees no delay; late contributions are dropped. Around SGD this is
    `Rennala` with ``S=B``. The publication chooses B by a quantile of the delays, or doubles it during the run; here B
    is fixed.

    Args:
        workers: Number of workers.
        B: Number of contributions per update; by default the number of workers.

    Examples:
        >>> policy = AsyncMiniBatch(workers=4, B=2)
        >>> ticket = Ticket(0, worker=0, version=1, seen=0, sample=0)
        >>> [policy.receive(ticket, delay).action for delay in (0, 1, 0)]
        ['hold', 'drop', 'flush']

    References:
        Attia, Gaash, Koren, Faster Stochastic Optimization with Arbitrary Delays via Asynchronous Mini-Batching, 2024,
        arXiv 2408.07503 (our reading: the abstract was read, the rule is recalled).
    """

    name = "async-minibatch"

    def __init__(self, workers: int, B: int | None = None) -> None:
        super().__init__()
        self.B = whole_number("B", workers if B is None else B, least=1)

    def receive(self, ticket: Ticket, delay: int) -> Decision:
        """Drop it if it is late, else hold it; flush with the B-th."""
        return self._collect_fresh(self.B, delay)


class FedBuff(_Collecting):
    """A buffer of K contributions of any delay: one update with ``sum(s(d)·g)/K``, where ``s(d) = (1 + d)^-1/2``.

    The sum is divided by K and not by the sum of the weights, as published: late contributions shorten the step.

    Args:
        workers: Number of workers.
        K: Number of contributions per update; by default the number of workers.
        flat: Give every contribution the weight 1 instead.

    Examples:
        >>> policy = FedBuff(workers=4, K=2)
        >>> ticket = Ticket(0, worker=0, version=1, seen=0, sample=0)
        >>> [policy.receive(ticket, delay=3) for _ in range(2)]
        [Decision(action='hold', weight=0.5, divisor=1.0), Decision(action='flush', weight=0.5, divisor=1.0)]

    References:
        Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, 2021, arXiv 2106.06639 (read in
        public code).
    """

    name = "fedbuff"

    def __init__(self, workers: int, K: int | None = None, flat: bool = False) -> None:
        super().__init__()
        self.K = whole_number("K", workers if K is None else K, least=1)
        self.flat = checked_flag("flat", flat)

    def receive(self, ticket: Ticket, delay: int) -> Decision:
        """Hold it, or flush with the K-th."""
        decision = self._collect(self.K)
        return decision if self.flat or not delay else Decision(decision.action, (1.0 + delay) ** -0.5, divisor=1.0)


def flat_buffer(workers: int, K: int | None = None) -> FedBuff:
    """Return a `FedBuff` whose contributions all have the weight 1, as FADAS collects them.

    Args:
        workers: Number of workers.
        K: Number of contributions per update; by default the number of workers.
    """
    return FedBuff(workers, K, flat=True)
