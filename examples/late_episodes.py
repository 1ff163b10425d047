"""Policy gradient with episodes of two lengths: long ones come late, and this shows what dropping them does.

    python examples/late_episodes.py [--steps 1500] [--seeds 5] [--out DIR]

An agent walks in a corridor. In a near room the goal is 4 cells to the right, and an episode has 8 steps. In a far room
the goal is 20 cells away, and an episode has 40 steps; one room in five is far. A worker plays 16 episodes with the
policy that it was given and returns their policy gradient (REINFORCE). So gradients of far rooms take five times as
long, and are late.

There are two settings. With the far goal on the other side, only far rooms teach how to reach it. With the far goal on
the same side, what is learnt in near rooms helps there too.

Every method gets the same rooms on eight workers of a virtual clock, whose unit is a step of an episode. Learning rates
are chosen on two seeds that are not shown. The table has the part of the way to the goal that the agent covers: 1 is
all of it, 0 none, -1 as far in the wrong direction. About 20 minutes on one core; --steps 60 --seeds 1 --rates 0.3
takes seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

import latecomer as lc

WORKERS, FAR_SHARE, EPISODES, BETA = 8, 0.2, 16, 0.1
HORIZONS, DISTANCES = (8, 40), (4, 20)  # of near and far rooms
METHODS = {
    "waiting for all": ("momentum", {"beta": BETA}),
    "dropping the late": ("delay-filtered", {"threshold": WORKERS}),
    "momentum": ("momentum", {"beta": BETA}),
    "ordered-momentum": ("ordered-momentum", {"beta": BETA}),
    "balanced-catch-up": ("balanced-catch-up", {"beta": BETA}),
}


HEADS = ("far goal", "method", "lr", "near rooms", "far rooms", "delay of far rooms", "time on the clock")


class Played(NamedTuple):
    """Episodes of one batch, by step: the log-probabilities of the actions, and the rewards."""

    chosen: Tensor
    rewards: Tensor


class Corridor(lc.problems.Problem):
    """Walk to the goal: near on the right, or far away on the left (on the right with ``same_side``)."""

    name, groups, shares = "corridor", 2, (1 - FAR_SHARE, FAR_SHARE)

    def __init__(self, same_side: bool = False) -> None:
        self.same_side = same_side

    def model(self, seed: int) -> nn.Module:
        """Return the policy: room and place to the logits of a step left, none, right."""
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))

    def batch(self, sample: int, group: int) -> int:
        """Return the room; the episodes are drawn when they are played, by the ticket's seed."""
        return group

    def play(self, model: nn.Module, far: int, episodes: int) -> Played:
        """Play episodes side by side. The reward of a step is how much closer it leads, in units of the distance."""
        goal = DISTANCES[far] * (1 if not far or self.same_side else -1)
        place, chosen, rewards = torch.zeros(episodes), [], []
        for step in range(HORIZONS[far]):
            time = torch.full((episodes,), step / HORIZONS[far])
            seen = torch.stack([torch.full((episodes,), float(far)), place / DISTANCES[far], time, place.sign()], dim=1)
            odds = model(seen).log_softmax(dim=1)
            action = torch.multinomial(odds.detach().exp(), 1)
            chosen.append(odds.gather(1, action)[:, 0])
            before = (place - goal).abs()
            place = place + action[:, 0] - 1
            rewards.append((before - (place - goal).abs()) / DISTANCES[far])
        return Played(torch.stack(chosen), torch.stack(rewards))

    def loss(self, model: nn.Module, batch: int) -> Tensor:
        """Return what has the policy gradient: log-probabilities times what followed, less the mean of the batch."""
        played = self.play(model, batch, EPISODES)
        followed = played.rewards.flip(0).cumsum(0).flip(0)
        return -(played.chosen * (followed - followed.mean(dim=1, keepdim=True))).sum(0).mean()

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return which part of the way 200 episodes cover, in near and in far rooms: 1 is all, 0 none."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            near, far = (float(self.play(model, room, 200).rewards.sum(0).mean()) for room in (0, 1))
        return {"loss": -near - far, "near": near, "far": far}


def mean(values: Sequence[float]) -> float:
    """Return the mean."""
    return sum(values) / len(values)


class Row(NamedTuple):
    """The runs of one method: a number per seed."""

    same_side: bool
    name: str
    lr: float
    near: list[float]
    far: list[float]
    delay: list[float]
    time: list[float]

    def cells(self) -> list[str]:
        """Return what the table shows."""
        ways = [f"{mean(way):.2f} ({min(way):.2f} to {max(way):.2f})" for way in (self.near, self.far)]
        side = "same side" if self.same_side else "other side"
        return [side, self.name, f"{self.lr:g}", *ways, f"{mean(self.delay):.1f}", f"{mean(self.time):,.0f}"]


def train(name: str, lr: float, steps: int, seed: int, same_side: bool) -> dict[str, float]:
    """Train with one of METHODS; return the last evaluation, the time on the clock and the delay of far rooms."""
    method, options = METHODS[name]
    policy = lc.policy.Synchronous(WORKERS) if name == "waiting for all" else None
    delays = lc.delays.SampleCost(WORKERS, cost=HORIZONS, slow_share=FAR_SHARE)
    trace = delays.trace(steps, seed, policy=policy)
    run = lc.simulate(Corridor(same_side), method, trace, policy=policy, lr=lr, seed=seed, **options)
    late = trace.delay[trace.group == 1]
    return {**run.final, "time": float(trace.end.max()), "delay": float(late.mean()) if len(late) else 0.0}


def compare(steps: int, seeds: int, rates: Sequence[float], same_side: bool) -> list[Row]:
    """Choose the learning rate of every method on two seeds, then train with it on others."""
    rows = []
    for name in METHODS:
        lr = rates[0]
        if len(rates) > 1:
            tried = {lr: [train(name, lr, steps, seed, same_side)["loss"] for seed in (100, 101)] for lr in rates}
            lr = min(tried, key=lambda lr: sum(tried[lr]))
        runs = [train(name, lr, steps, seed, same_side) for seed in range(seeds)]
        rows.append(Row(same_side, name, lr, *([run[key] for run in runs] for key in ("near", "far", "delay", "time"))))
        print(" ".join(rows[-1].cells()), flush=True)
    return rows


def draw(rows: list[Row], folder: Path) -> None:
    """Draw one panel per kind of far room: two bars per method, and a dot per seed."""
    from latecomer.report.style import FAST, INK, SLOW, Figure, save_figure, tidy

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    for axes, same_side in zip(figure.subplots(1, 2, sharey=True, sharex=True), (False, True), strict=True):
        tidy(axes, f"far goal on {'the same' if same_side else 'the other'} side")
        shown = [row for row in rows if row.same_side == same_side][::-1]
        for place, row in enumerate(shown):
            for values, colour, up in ((row.near, FAST, 0.19), (row.far, SLOW, -0.19)):
                axes.barh(place + up, mean(values), height=0.36, color=colour, alpha=0.8)
                axes.plot(values, [place + up] * len(values), ".", color=INK, markersize=4)
        soonest = min(mean(row.time) for row in shown)
        slower = [mean(row.time) / soonest for row in shown]
        labels = [
            row.name + (f"\n({times:.1f} times as long)" if times > 1.01 else "")
            for row, times in zip(shown, slower, strict=True)
        ]
        axes.set_yticks(range(len(shown)), labels)
        axes.axvline(0, color=INK, linewidth=0.8)
    figure.supxlabel(
        "part of the way to the goal that is covered: near rooms blue, far rooms red; a dot per seed", fontsize=10
    )
    save_figure(figure, folder, "late_episodes")


def main() -> None:
    """Compare, print, and write a table and a figure if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500, help="contributions per run")
    parser.add_argument("--seeds", type=int, default=5, help="runs per method")
    parser.add_argument(
        "--rates", type=float, nargs="+", default=[0.1, 0.3, 1.0, 3.0], help="learning rates to choose from"
    )
    parser.add_argument("--out", type=Path, help="folder for the table and the figure")
    options = parser.parse_args()
    rows = [row for side in (False, True) for row in compare(options.steps, options.seeds, options.rates, side)]
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        command = f"python examples/late_episodes.py --steps {options.steps} --seeds {options.seeds}"
        title = "Late episodes: part of the way that the agent covers, mean and range over seeds"
        page = lc.report.write_table(
            options.out,
            "late_episodes",
            title,
            HEADS,
            [row.cells() for row in rows],
            command,
            [row._asdict() for row in rows],
        )
        draw(rows, options.out)
        print(f"Wrote {page} and late_episodes.svg beside it.")


if __name__ == "__main__":
    main()
