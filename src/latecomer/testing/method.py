"""`check_method` checks any method: what a server, a checkpoint and a replay rely on."""

from __future__ import annotations

import inspect
import io
import random
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from ..delays import SampleCost
from ..optim import Arrival, AsyncOptimizer, MethodLike, as_method
from ..optim.methods import method_and_policy
from ..policy import Async, PolicyLike
from ..policy.asking import allowed
from ..problems import quadratic
from ..server import Server
from ..simulation import simulate
from ..training import fit, replay
from ._helpers import HalfwayError, delays_of, distance, generators, parameters, seed_all

__all__ = ["RULES", "MethodError", "check_method"]

RULES: Mapping[str, str] = MappingProxyType(
    {
        "made": "a new optimizer has the parameters that it is given, and leaves them as they are",
        "orders": "in any order of arrival every contribution is counted once, and the parameters move, stay finite "
        "and stay in their memory",
        "repeated": "the same arrivals give the same bits, whatever the global random numbers and the time",
        "generators": "the global random generators are left as they are",
        "read": "gradients are only read: neither changed nor kept",
        "skipped": "a parameter without a gradient stays as it is",
        "zero": "values of weight zero are never read",
        "sent": "a contribution is the combination of gradients that coefficients returns",
        "alone": "step(delay=...) in a training loop has the same bits as a server",
        "saved": "an optimizer whose state dict was saved and loaded continues with the same bits",
        "resumed": "a run that resumes from its checkpoint has the same bits as one that was never stopped",
        "replayed": "a recorded run replays to the same bits",
        "influence": "a gradient's total weight, relative to one without delay, is the declared influence of its delay",
    }
)
"""The rules that `check_method` checks, by name, in this order."""
_ZEROS = 2000  # arrivals of zero after which every momentum has run out
_ONE_HOT = 1e-12  # so small that rules which divide by a root of squares are linear


class MethodError(AssertionError):
    """A method violates a rule.

    Examples:
        >>> raise MethodError("it keeps a gradient")
        Traceback (most recent call last):
        latecomer.testing.method.MethodError: it keeps a gradient
    """


def check_method(
    method: MethodLike, *, policy: PolicyLike | None = None, only: Collection[str] | None = None, **options: Any
) -> list[str]:
    """Check that a method keeps the rules; raise `MethodError`, which names the rule, for the first violation.

    It tries arrivals without delay, in turns, at random and with a straggler; saves and loads the state; resumes and
    replays runs; and measures the influence of late gradients, if the method declares one.

    Args:
        method: What ``method=`` takes in `latecomer.fit`: a name, a class, a function of the parameters, or a `Method`.
        policy: A policy instead of the method's own.
        only: Names of `RULES` to check.
        **options: Hyper-parameters of the method; ``lr`` is 0.05 if the method needs one and none is given.

    Returns:
        The rules that it keeps.

    Examples:
        >>> len(check_method("ordered-momentum", beta=0.2)) == len(RULES)
        True
        >>> import latecomer as lc
        >>> class Forgetful(lc.optim.AsyncSGD):
        ...     previous = 0.0
        ...     def _update(self, group, params, grads, arrival):
        ...         super()._update(group, params, [g + self.previous for g in grads], arrival)
        ...         self.previous = 0.0 if arrival.zero else grads[0].mean().item()
        >>> check_method(Forgetful, only=["saved"])             # doctest: +ELLIPSIS
        Traceback (most recent call last):
        latecomer.testing.method.MethodError: ...Forgetful breaks the rule "an optimizer whose state dict was saved and
            loaded continues with the same bits": expected the bits of ... after a load at arrival 1, found ... away
    """
    wanted = set(RULES if only is None else only)
    if unknown := wanted - RULES.keys():
        raise ValueError(f"Unknown rules: {', '.join(sorted(unknown))} (expected some of {', '.join(RULES)})")
    options = _with_lr(method, options, policy)
    check = _Check(method, policy, options)
    if check.method.weight is None:
        wanted.discard("influence")
    for name in (name for name in RULES if name in wanted):
        check.rule = RULES[name]
        try:
            getattr(check, name)()
        except MethodError:
            raise
        except Exception as error:
            check.fail("no error", f"{type(error).__name__}: {error}", error)
    return [RULES[name] for name in RULES if name in wanted]


def _with_lr(method: MethodLike, options: dict[str, Any], policy: PolicyLike | None) -> dict[str, Any]:
    """Return the options with a learning rate, if the method needs one; raise for invalid ones."""
    lr = as_method(method).arguments.get("lr")
    needed = {"lr": 0.05} if lr is not None and lr.default is inspect.Parameter.empty else {}
    given = {**needed, **options}
    method_and_policy(method, policy, 4, given)
    return given


@dataclass
class _Job:
    """What a worker computes: from which version, at which points."""

    version: int
    points: list[list[Tensor]]


class _Orders:
    """Who arrives: one worker number per arrival."""

    fresh = (0,) * 30
    turns = tuple(i % 4 for i in range(40))
    straggler = (*(i % 3 for i in range(30)), 3, *(i % 3 for i in range(9)))
    anyhow = tuple(np.random.default_rng(0).integers(0, 5, 40).tolist())
    all = (fresh, turns, straggler, anyhow)


class _Check:
    """The rules, on one method."""

    rule = ""

    def __init__(self, method: MethodLike, policy: PolicyLike | None, options: Mapping[str, Any]) -> None:
        self.given, self.policy, self.options = method, policy, dict(options)
        self.method, decides = method_and_policy(method, policy, 4, options)
        self.decides = type(decides) is not Async

    def fail(self, expected: str, found: str, error: Exception | None = None) -> NoReturn:
        raise MethodError(
            f'{self.method.name} breaks the rule "{self.rule}": expected {expected}, found {found}'
        ) from error

    def new(self, params: Sequence[Tensor], **options: Any) -> AsyncOptimizer:
        return self.method(list(params), **{**self.options, **options})

    # ---- driving an optimizer ---------------------------------------------------------------------------------

    def drive(
        self,
        order: Sequence[int],
        opt: AsyncOptimizer,
        params: Sequence[Tensor],
        *,
        zeros: Collection[int] = (),
        unread: float | None = None,
        alone: bool = False,
        after: Callable[[int, Sequence[Tensor], list[Tensor]], None] | None = None,
        jobs: dict[int, _Job] | None = None,
        first: int = 1,
    ) -> list[Tensor]:
        """Let workers arrive in this order, as a server would, and return the parameters at the end.

        Args:
            order: The worker of every arrival.
            opt: The optimizer.
            params: Its parameters.
            zeros: Arrivals of weight zero.
            unread: Values in place of those that the optimizer says it does not need.
            alone: Tell the optimizer no more than ``step(delay=...)`` does.
            after: Called after every arrival with its index, what was passed, and a copy of that from before.
            jobs: The jobs in flight, if this continues; they are updated in place.
            first: Index of the first arrival.
        """
        jobs = {} if jobs is None else jobs
        for worker in sorted(set(order) - jobs.keys()):
            jobs[worker] = self._job(opt, params, worker)
        for t, worker in enumerate(order, first):
            job, oldest = jobs[worker], min(each.version for each in jobs.values())
            arrival = Arrival(t, job.version, worker, len(jobs), job.points[0], t in zeros, oldest)
            if alone:
                arrival = Arrival(t, job.version, point=job.points[0] if opt.reads_point else None)
            grads = self.contribution(opt, job, t)
            if unread is not None and not opt.needs(arrival):
                grads = [torch.full_like(g, unread) for g in grads]
            passed = [g.clone() for g in grads]
            opt.receive(arrival, grads)
            if after is not None:
                after(t, grads, passed)
            jobs[worker] = self._job(opt, params, worker)
        return [p.detach().clone() for p in params]

    def _job(self, opt: AsyncOptimizer, params: Sequence[Tensor], worker: int) -> _Job:
        points = [[torch.empty_like(p, requires_grad=False) for p in params] for _ in range(opt.points)]
        opt.query(points, worker)
        return _Job(opt.version, points)

    def contribution(self, opt: AsyncOptimizer, job: _Job, t: int) -> list[Tensor]:
        here, *before = self.gradients(job, t)
        sent = opt.contribution(here, before[0] if before else None, job.version)
        return [g.clone() for g in sent if g is not None]

    @staticmethod
    def gradients(job: _Job, t: int) -> list[list[Tensor]]:
        """Return the gradients of the t-th sample at the points of a job: of a quadratic, with noise."""
        generator = torch.Generator().manual_seed(t)
        noise = [torch.randn(p.shape, dtype=p.dtype, generator=generator) for p in job.points[0]]
        return [[0.1 * p + n for p, n in zip(point, noise, strict=True)] for point in job.points]

    def same(self, order: Sequence[int], found: list[Tensor], what: str, **how: Any) -> None:
        """Compare with the bits of a run in which nothing special happens."""
        params = parameters()
        expected = self.drive(order, self.new(params), params, **how)
        if not all(map(torch.equal, found, expected)):
            self.fail(f"the bits of {what}", distance(found, expected))

    # ---- the rules --------------------------------------------------------------------------------------------

    def made(self) -> None:
        params, before = parameters(), parameters()
        opt = self.new(params)
        if opt.t != 0:
            self.fail("0 arrivals", f"{opt.t}")
        if not all(map(torch.equal, params, before)):
            self.fail("the parameters as they were", "others")

    def orders(self) -> None:
        for order in _Orders.all:
            params = parameters()
            opt = self.new(params)
            where = [p.data_ptr() for p in params]

            def after(t: int, *_: Any, params: Any = params, opt: Any = opt, where: Any = where) -> None:
                if opt.t != t:
                    self.fail(f"t = {t} after arrival {t}", f"t = {opt.t}")
                if [p.data_ptr() for p in params] != where:
                    self.fail("the parameters in their memory, changed in place", f"new memory after arrival {t}")
                if not all(bool(p.isfinite().all()) for p in params):
                    self.fail("finite parameters after finite gradients", f"NaN or infinity after arrival {t}")

            self.drive(order, opt, params, after=after)
            if any(map(torch.equal, params, parameters())):
                self.fail("other parameters after the arrivals, changed in place", "a parameter as it was")

    def read(self) -> None:
        params = parameters()

        def after(t: int, grads: Sequence[Tensor], passed: list[Tensor]) -> None:
            if not all(map(torch.equal, grads, passed)):
                self.fail("gradients as they were passed", f"changed ones after arrival {t}")
            for g in grads:
                g.fill_(1e6)  # an engine writes the next gradient into the same memory

        found = self.drive(_Orders.anyhow, self.new(params), params, after=after)
        self.same(_Orders.anyhow, found, "a run whose gradients are not overwritten afterwards")
        params = parameters()
        opt = self.new(params)
        given = [torch.ones_like(p, requires_grad=False) for p in params]
        for p, g in zip(params, given, strict=True):
            p.grad = g
        opt.step(previous_grads=[torch.ones_like(p) for p in params] if opt.points == 2 else None)
        for p, g in zip(params, given, strict=True):
            if p.grad is not g or not torch.equal(g, torch.ones_like(g)):
                self.fail("p.grad as it was before step()", "another one")

    def skipped(self) -> None:
        params = parameters()
        opt = self.new(params)
        before = params[1].detach().clone()
        for _ in range(3):
            params[0].grad = torch.ones_like(params[0])
            previous: list[Tensor | None] = [torch.ones_like(params[0]), None]
            opt.step(previous_grads=previous if opt.points == 2 else None)
        if not torch.equal(params[1], before):
            self.fail("a parameter without p.grad as it was", distance([params[1].detach()], [before]))

    def zero(self) -> None:
        zeros = {3, 4, 17}
        ends = []
        for values in (1e3, float("nan")):
            params = parameters()
            ends.append(self.drive(_Orders.anyhow, self.new(params), params, zeros=zeros, unread=values))
        if not all(map(torch.equal, *ends)):
            self.fail(
                "the same bits whatever the values of arrivals that needs() is False for (an Arrival with zero=True)",
                distance(*ends),
            )

    def sent(self) -> None:
        params = parameters()
        opt = self.new(params)
        jobs: dict[int, _Job] = {}
        self.drive(_Orders.turns, opt, params, jobs=jobs)
        for worker, job in jobs.items():
            here, *before = self.gradients(job, worker)
            sent = opt.contribution(here, before[0] if before else None, job.version)
            a, b = opt.coefficients(job.version)
            combined = [a * g + (b * before[0][i] if before else 0.0) for i, g in enumerate(here)]
            for found, expected in zip(sent, combined, strict=True):
                if found is None or not torch.allclose(found, expected):
                    self.fail(f"{a:g} times the gradient and {b:g} times the one before it", "something else")

    def alone(self) -> None:
        if "workers" in self.method.arguments and "workers" not in self.options:
            return  # a loop of one's own does not know the number of workers
        order, params = _Orders.anyhow, parameters()
        opt = self.new(params)
        jobs = {worker: self._job(opt, params, worker) for worker in sorted(set(order))}
        for t, worker in enumerate(order, 1):
            here, *before = self.gradients(jobs[worker], t)
            for p, g in zip(params, here, strict=True):
                p.grad = g
            if opt.reads_point:
                opt.step(arrival=Arrival(t, jobs[worker].version, point=jobs[worker].points[0]))
            else:
                opt.step(delay=opt.version - jobs[worker].version, previous_grads=before[0] if before else None)
            jobs[worker] = self._job(opt, params, worker)
        self.same(order, [p.detach() for p in params], "receive(), which a server calls", alone=True)

    def repeated(self) -> None:
        ends = []
        for seed in (1, 2):
            with generators():
                seed_all(seed)
                params = parameters()
                ends.append(self.drive(_Orders.anyhow, self.new(params), params))
        if not all(map(torch.equal, *ends)):
            self.fail("the same bits twice", distance(*ends))

    def generators(self) -> None:
        with generators():
            seed_all(1)
            before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
            params = parameters()
            self.drive(_Orders.anyhow, self.new(params), params)
            after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
        for name, a, b in zip(("torch", "random", "numpy"), before, after, strict=True):
            if not (torch.equal(a, b) if isinstance(a, Tensor) else a == b):
                self.fail(f"the global generator of {name} as it was", "that the rule drew from it")

    def saved(self) -> None:
        for order in (_Orders.anyhow, _Orders.straggler):
            for cut in (1, 13, 32):
                params, jobs = parameters(), dict.fromkeys(sorted(set(order)))
                opt = self.new(params)
                flying = {worker: self._job(opt, params, worker) for worker in jobs}
                self.drive(order[:cut], opt, params, jobs=flying)
                file = io.BytesIO()
                torch.save(opt.state_dict(), file)
                file.seek(0)
                again = [nn.Parameter(p.detach().clone()) for p in params]
                loaded = self.new(again)
                loaded.load_state_dict(torch.load(file, weights_only=True))
                found = self.drive(order[cut:], loaded, again, jobs=flying, first=cut + 1)
                expected = self.drive(order[cut:], opt, params, jobs=self._flying(order, cut), first=cut + 1)
                if not all(map(torch.equal, found, expected)):
                    self.fail(
                        f"the bits of an optimizer that goes on, after a load at arrival {cut}",
                        distance(found, expected),
                    )

    def _flying(self, order: Sequence[int], cut: int) -> dict[int, _Job]:
        """Return the jobs in flight after so many arrivals."""
        params = parameters()
        opt = self.new(params)
        jobs = {worker: self._job(opt, params, worker) for worker in sorted(set(order))}
        self.drive(order[:cut], opt, params, jobs=jobs)
        return jobs

    def resumed(self) -> None:
        problem, model = quadratic(), SampleCost(workers=4, cost=(1.0, 5.0), slow_share=0.2)
        _, made = method_and_policy(self.given, self.policy, model.workers, self.options)
        trace = model.trace(60, 0, policy=made)
        given: dict[str, Any] = {"policy": self.policy, "evaluate_every": 10, **self.options}
        whole = simulate(problem, self.given, trace, **given)
        with tempfile.TemporaryDirectory() as folder:

            def at_half(done: int, total: int) -> None:
                if done == 30:
                    raise HalfwayError

            try:
                simulate(problem, self.given, trace, **given, checkpoint=folder, checkpoint_every=7, progress=at_half)
            except HalfwayError:
                resumed = simulate(problem, self.given, trace, **given, checkpoint=folder, checkpoint_every=7)
        a, b = ([run.state[name] for name in whole.state] for run in (resumed, whole))
        if not all(map(torch.equal, a, b)):
            self.fail("the bits of the run that was never stopped", distance(a, b))

    def replayed(self) -> None:
        problem = quadratic()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.parquet"
            run = {"workers": 3, "engine": "inline", "steps": 50, "record": path, "policy": self.policy}
            fit(problem, method=self.given, **{**self.options, **run})  # the server knows the number of workers
            _, made = method_and_policy(self.given, self.policy, 3, self.options)
            again = replay(path, problem, method=self.given, policy=made)
        if again.difference != 0.0:
            self.fail("the same bits", again.verdict)

    def influence(self) -> None:
        order, delays = _Orders.anyhow, delays_of(_Orders.anyhow)
        workers = max(order) + 1
        if self.decides:
            (late, delays), (fresh, _) = self._weights_with_policy(order, workers), self._weights_with_policy(order, 1)
        else:
            late, fresh = self._weights(delays, order), self._weights([0] * len(order), [0] * len(order))
        defaults = {name: p.default for name, p in self.method.arguments.items() if p.default is not p.empty}
        known = {**defaults, **self.method.options, **self.options}
        known["workers"] = known.get("workers") or workers
        zero = self.method.influence(0, **known)
        if abs(zero - 1.0) > 1e-9:
            self.fail("an influence of 1 without delay", f"influence(0) = {zero:g}")
        for t, delay in enumerate(delays, 1):
            declared = self.method.influence(delay, **known)
            measured = late[t - 1] / fresh[t - 1] if fresh[t - 1] else late[t - 1]
            if not abs(measured - declared) <= 1e-6 * max(1.0, abs(declared)):
                self.fail(
                    f"{declared:.6g} for arrival {t} with delay {delay}, as declared", f"{measured:.6g}, as measured"
                )

    def _weights(self, delays: Sequence[int], order: Sequence[int]) -> list[float]:
        """Return the weight of every arrival: arrival t has the gradient e_t, and zeros come before and after.

        Before, because rules may treat their first arrivals in another way, to start without bias.
        """
        x = nn.Parameter(torch.zeros(len(delays), dtype=torch.float64))
        # Decay would shrink what has arrived.
        opt = self.new([x], **({"weight_decay": 0.0} if "weight_decay" in self.method.arguments else {}))
        for t, delay in enumerate([*[0] * _ZEROS, *delays, *[0] * _ZEROS], 1):
            g, index = torch.zeros_like(x, requires_grad=False), t - _ZEROS - 1
            if 0 <= index < len(delays):
                g[index] = _ONE_HOT
            # The same gradient at both points, as of a linear loss.
            sent = opt.contribution([g], [g.clone()] if opt.points == 2 else None, t - delay)
            worker = order[index % len(order)]
            opt.receive(Arrival(t, t - delay, worker, max(_Orders.anyhow) + 1, point=[x.detach()]), sent)
        return [float(value) for value in -x.detach() / _ONE_HOT]

    def _weights_with_policy(self, order: Sequence[int], workers: int) -> tuple[list[float], list[int]]:
        """Return the weight and the delay of every arrival at a server with the policy; the first workers arrive."""
        x = nn.Parameter(torch.zeros(len(order), dtype=torch.float64))
        opt = self.new([x], **({"weight_decay": 0.0} if "weight_decay" in self.method.arguments else {}))
        _, policy = method_and_policy(self.given, self.policy, max(order) + 1, self.options)
        server, delays = Server(opt, workers=workers, policy=policy), []
        for index, wanted in enumerate([*order, *[i % workers for i in range(_ZEROS)]]):
            for worker in range(workers):
                if server.holds(worker) is None and allowed(policy, server.outstanding):
                    server.issue(worker)
            # A policy may let the worker wait: the next one that has a job arrives in its place.
            held = (server.holds((wanted + i) % workers) for i in range(workers))
            g = torch.zeros_like(x, requires_grad=False)
            if index < len(order):
                g[index] = _ONE_HOT
            outcome = server.receive(next(ticket for ticket in held if ticket is not None), g)
            delays.append(outcome.delay)
        return [float(value) for value in -x.detach() / _ONE_HOT], delays[: len(order)]
