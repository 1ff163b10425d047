"""How large the plan is: the plan itself, a miniature of it, and the paper's grids.

Only `PLAN` judges by what docs/evidence.md says; its numbers were fixed before the runs and must not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from .evidence import CHOOSING_SEEDS, CLAIMS, JUDGED_SEEDS, Claim
from .presets import BETAS, GAMMAS, PAPER_RATES
from .pretraining import STAND_INS, Task

__all__ = ["MINIATURE", "PAPER_GRIDS", "PLAN", "SCALES", "STAGES", "Scale", "Task"]

RATES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""Seven of the paper's 19 learning rates, evenly spaced on a log scale."""
STAGES = ("choose", "judge", "curves", "figure", "cifar10", "readings")


@dataclass(frozen=True)
class Scale:
    """Sizes of the plan; the defaults are those of docs/evidence.md.

    Args:
        size: What the command calls it.
        stages: Its stages, in their order.
        decides: Whether its verdicts are verdicts.
        steps: Updates of a run on MNIST.
        rates: Learning rates of the coarse choice and of the curves.
        betas: Values of beta to choose from.
        gammas: Values of gamma to choose from.
        thresholds: Thresholds to choose from, in numbers of workers.
        width: Width of the network in choosing and judging; None for the problem's own.
        curve_width: Width in the curves.
        evaluations: Evaluations of a judging run.
        coarse_seeds: How many seeds the coarse choice has.
        fine: How many configurations go into the fine choice, and on how many seeds.
        final: The same of the final choice.
        pairs: Looks of the claims on judging runs.
        curve_seeds: Looks of the claims on curves.
        seeds: Seeds of the judging runs.
        stand_ins: Updates of the pre-training by task, for CIFAR-10.
        tuned_width: Width of the network there, where it is pre-trained here.
        tuned_steps: Updates of a run on CIFAR-10.
        tuned_rates: Learning rates of the coarse choice there.
        tuned_seeds: How many seeds the final choice has there.
        tuned_pairs: The one look there.
    """

    size: str = "standard"
    stages: tuple[str, ...] = STAGES
    decides: bool = True
    steps: int = 3750
    rates: tuple[float, ...] = RATES
    betas: tuple[float, ...] = tuple(BETAS)
    gammas: tuple[float, ...] = tuple(GAMMAS)
    thresholds: tuple[float, ...] = (1.0, 1.5, 2.0)
    width: float | None = None
    curve_width: float | None = 0.4
    evaluations: int = 8
    coarse_seeds: int = 1
    fine: tuple[int, int] = (4, 5)
    final: tuple[int, int] = (2, len(CHOOSING_SEEDS))
    pairs: tuple[int, ...] = (20, 40, 80, 120)
    curve_seeds: tuple[int, ...] = (20, 40, 60)
    seeds: range = JUDGED_SEEDS
    stand_ins: Mapping[Task, int] = field(default_factory=lambda: MappingProxyType(STAND_INS))
    tuned_width: float = 0.25
    tuned_steps: int = 3750
    tuned_rates: tuple[float, ...] = (0.002, 0.01, 0.05)
    tuned_seeds: int = 3
    tuned_pairs: int = 20

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The claims, with the looks of this scale."""
        looks = {"judge": self.pairs, "curves": self.curve_seeds, "cifar10": (self.tuned_pairs,)}
        return tuple(replace(claim, looks=looks[claim.study]) for claim in CLAIMS)


PLAN = Scale()
"""What docs/evidence.md says."""
_SMALL = ("choose", "judge", "curves", "cifar10")
MINIATURE = Scale(
    "quick", _SMALL, decides=False, steps=1500, rates=(0.01, 0.02), betas=(0.05,), gammas=(0.1,), thresholds=(2.0,),
    width=0.2, curve_width=0.2, evaluations=4, fine=(1, 1), final=(1, 1), pairs=(3,), curve_seeds=(2,),
    seeds=range(5000, 5003), stand_ins=MappingProxyType({"rotations": 300}), tuned_width=0.125, tuned_steps=40,
    tuned_rates=(0.01, 0.05), tuned_seeds=1, tuned_pairs=2,
)  # fmt: skip
"""Every step of the plan in a few minutes. Its seeds are not those of the plan: nobody is to look at them early."""
PAPER_GRIDS = Scale("paper", _SMALL, rates=tuple(sorted(PAPER_RATES)), curve_width=None, coarse_seeds=3)
"""All of the paper's learning rates on three seeds, and curves over all of them at full width."""
SCALES = {scale.size: scale for scale in (MINIATURE, PLAN, PAPER_GRIDS)}
