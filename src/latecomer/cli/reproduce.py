"""``latecomer reproduce``: the paper's experiments, run again by the plan of docs/evidence.md, with verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro

from .._util.checks import whole_number
from .._util.files import writable
from ._output import Json, print_text, show
from ._runs import Runner, RunsCommand

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from ..experiments import Store, Sweep
    from ..experiments.pieces import FinishedRuns
    from ..paper.scale import Scale
    from ..paper.verdicts import Findings

__all__ = ["ReproduceCommand"]

_STAGES = {
    "mnist": ("choose", "judge", "curves", "figure", "readings"),
    "cifar10": ("cifar10",),
    "all": ("choose", "judge", "curves", "figure", "cifar10", "readings"),
}
_SIZES = {
    "quick": "This is the plan in miniature: fewer learning rates, seeds and updates, and a narrow network. It shows "
    "how the paper's claims are judged, and decides nothing.",
    "standard": "This is the plan of docs/evidence.md. It takes days on two cores, can be killed at any time, and goes "
    "on where it stopped.",
}
_OUR_READING = (
    "Not in the paper: batch size, number of updates and widths; 16, 3,750, 20 and 50 channels are our reading "
    "(docs/paper-map.md). MNIST has the paper's grids of hyper-parameters; CIFAR-10 has those of docs/evidence.md, and "
    "the stages figure and readings belong to size standard."
)
_NO_IMAGENET = "CIFAR-10 from ImageNet weights, which this command does not download: pass a file with --weights. "


@dataclass(frozen=True)
class ReproduceCommand(RunsCommand):
    """Run the paper's experiments and write verdicts, tables, figures and a page; can be killed and started again.

    Missing data is downloaded. Runs that are there are not repeated. There is no --seed: the size fixes all seeds.

    Example: latecomer reproduce mnist --size quick
    """

    name: tyro.conf.Positional[Literal["mnist", "cifar10", "all"]]
    """Which experiments."""
    size: Literal["quick", "standard", "paper"] = "quick"
    """quick: a miniature, minutes, decides nothing; standard: the plan, days; paper: the paper's grids on MNIST."""
    out: Path = Path("reproduction")
    """Folder for verdicts, tables, figures and the page."""
    stages: tuple[str, ...] = ()
    """Only these stages, in this order: choose, judge, curves, figure, cifar10, readings."""
    looks: int | None = None
    """Only the first so many looks of judge and curves, so that every claim is judged once before one is twice."""
    store: Path | None = None
    """Folder of the runs; ./runs for size standard and OUT/runs for the others if left out."""
    pieces: Path = Path("docs/results/paper/runs")
    """Folder of the committed runs: read first; in size standard new runs are added now and then, and at the end."""
    weights: Path | None = None
    """File of ResNet-18 weights to fine-tune from on CIFAR-10, such as ImageNet's."""
    dry_run: tyro.conf.FlagCreatePairsOff[bool] = False
    """Only print how many runs the next sweep has, and how many are missing."""
    json: Json = False
    """Print the verdicts as JSON on stdout, and everything else on stderr."""

    def run(self, console: Console) -> None:
        """Fetch, run, judge, draw."""
        from ..experiments import Store
        from ..experiments.pieces import Pieces
        from ..paper import evidence_page  # noqa: F401 - raise for a missing extra before hours of runs, not after
        from ..paper.scale import SCALES

        scale = SCALES[self.size]
        stages = self._chosen_stages(scale)
        if self.looks is not None:
            whole_number("--looks", self.looks, least=1)
        committed = Pieces(self.pieces) if self.size != "quick" else None
        store = Store(self.store or (Path("runs") if self.size == "standard" else self.out / "runs"))
        standard = self.size == "standard"
        runner = self.runner(store, committed, export=standard, dry_run=self.dry_run)
        if not self.from_store:
            print_text(console, self._first_line())
            self._make_runs(stages, runner, console)
        if not self.dry_run:
            self._write(committed if committed is not None and standard else store, console)

    def _chosen_stages(self, scale: Scale) -> list[str]:
        own = [stage for stage in _STAGES[self.name] if stage in scale.stages]
        if self.size == "paper" and self.weights is None and self.name == "all":
            own.remove("cifar10")
        for stage in self.stages:
            if stage not in own:
                expected = ", ".join(own)
                raise ValueError(
                    f"Invalid --stages value: {stage!r} (expected some of {expected} for {self.name} in size "
                    f"{self.size})"
                )
        if self.size == "paper" and own == ["cifar10"] and self.weights is None and not self.from_store:
            raise ValueError(_NO_IMAGENET.strip())
        return list(self.stages or own)

    def _first_line(self) -> str:
        return _SIZES.get(self.size) or ("" if self.weights else f"Cannot be run: {_NO_IMAGENET}") + _OUR_READING

    @property
    def _weights_folder(self) -> Path:
        return self.pieces.parent / "weights" if self.size == "standard" else self.out / "weights"

    # ---- runs ---------------------------------------------------------------------------------------------------

    def _make_runs(self, stages: list[str], runner: Runner, console: Console) -> None:
        from ..paper.plan import run_planned
        from ..paper.weights import add_file

        datasets = {"mnist" if stage != "cifar10" else "cifar10": None for stage in stages}
        runner.prepare(self.out, () if self.dry_run else datasets, console)
        if self.weights is not None and not self.dry_run:
            writable(self._weights_folder)
            add_file(self._weights_folder, self.weights)
        sweeps = (
            (f"{stage}, {sweep.name}", sweep)
            for stage in stages
            for sweep in self._sweeps(stage, runner.store, console)
        )
        runner.run(sweeps, run_planned, console)

    def _sweeps(self, stage: str, store: Store, console: Console) -> Iterator[Sweep]:
        """Yield the sweeps of a stage; weights that it needs are trained when it asks for them."""
        from ..paper.finetuning import NoWeightsError
        from ..paper.scale import SCALES
        from ..paper.stages import stage_sweeps
        from ..paper.weights import install, read_list

        scale, folder = SCALES[self.size], self._weights_folder
        while True:
            if stage == "cifar10" and not self.dry_run:
                install(folder)
            try:
                yield from stage_sweeps(stage, store, read_list(folder), scale, self.looks)
                return
            except NoWeightsError as error:
                if self.dry_run:
                    raise
                from .pretrain import Pretrain

                unfinished = store.folder / "pretraining"
                steps, width = scale.stand_ins[error.task], scale.tuned_width
                Pretrain(task=error.task, steps=steps, width=width, folder=folder, checkpoints=unfinished).run(console)

    # ---- what they say ------------------------------------------------------------------------------------------

    def _write(self, runs: FinishedRuns, console: Console) -> None:
        """Judge the runs that are there and write everything."""
        from ..paper.evidence_page import write_evidence
        from ..paper.scale import SCALES
        from ..paper.verdicts import collect, verdict_table
        from ..paper.weights import read_list
        from ._progress import working

        goes_on = f"latecomer reproduce {self.name} --size {self.size} --out {self.out}"
        with working("Judging the claims by the runs that are there", console):
            found = collect(runs, read_list(self._weights_folder), SCALES[self.size])
            if not any(each.there for each in found.progress):
                raise ValueError(f"There are no runs of size {self.size} to judge: `{goes_on}` makes them")
            writable(self.out)
            page = write_evidence(found, self.out, f"{goes_on} --from-store", goes_on)
        verdicts = verdict_table(found)
        show(console, _table(found), {"rows": verdicts.to_dicts(), "page": page, "decides": found.scale.decides})
        if found.missing:
            print_text(console, f"Not run to their end, and marked so: {', '.join(found.missing)}")
        if self.size == "quick":
            print_text(console, "A miniature decides nothing: docs/results/paper has what the plan found")
        print_text(console, f"{self.out / 'verdicts.csv'} and {page} have been written")


def _table(found: Findings) -> Table:
    from rich import box
    from rich.table import Table

    from ..paper.verdicts import verdict_table

    table = Table("#", "claim", title="Verdicts" if found.scale.decides else "A miniature", box=box.SIMPLE_HEAD)
    table.add_column("effect, 90 % interval", justify="right")
    table.add_column("pairs", justify="right")
    table.add_column("verdict")
    for row in verdict_table(found).iter_rows(named=True):
        effect = "" if row["effect"] is None else f"{row['effect']:+.3f}"
        if row["low"] is not None and row["high"] is not None:
            effect += f", {row['low']:+.3f} to {row['high']:+.3f}"
        claim = row["claim"] + (" (ours)" if row["whose"] == "ours" else "")
        table.add_row(str(row["number"]), claim, effect, str(row["pairs"] or ""), row["verdict"])
    return table
