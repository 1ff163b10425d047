"""Draw the diagrams of docs/architecture.md: ``python docs/architecture/diagrams.py`` writes both SVG files again."""

from __future__ import annotations

import itertools
from html import escape
from pathlib import Path
from typing import NamedTuple

__all__ = ["DIAGRAMS", "draw"]

WIDTH, MARGIN, GAP = 400, 12, 14


class Step(NamedTuple):
    """A box: what is called, in which file, and what it does in a few short lines."""

    call: str
    file: str
    lines: tuple[str, ...]


class Band(NamedTuple):
    """Steps that happen in one place."""

    title: str
    kind: str
    steps: tuple[Step, ...]


RECEIVE = (
    Step("Policy.receive", "policy/base.py", ("apply it, drop it, or hold it for a mean",)),
    Step("AsyncOptimizer.receive", "optim/base.py", ("the method updates the parameters,", "knowing the delay")),
    Step("Recorder.arrived", "trace/recorder.py", ("one row of the trace is complete",)),
)
AFTER = Step(
    "RunState.after_arrival",
    "core/state.py",
    ("batch-norm averages, learning-rate scheduler,", "check for divergence"),
)
BATCH = Step("Problem.micro_batches", "problems/base.py", ("the batch that the ticket's seed fixes",))
CONTRIBUTOR = Step("Contributor.__call__", "core/gradient.py", ("seeds torch's generator with the ticket",))

DIAGRAMS: dict[str, tuple[str, tuple[Band, ...]]] = {
    "simulate": (
        "One gradient through simulate",
        (
            Band(
                "when the ticket is issued: version k",
                "server",
                (
                    Step("Replayer.fill_gap", "simulation/replayer.py", ("the trace says: worker w starts now",)),
                    Step("Server.issue", "server.py", ("a ticket: number, version, seed of its sample",)),
                    Step("AsyncOptimizer.query", "optim/base.py", ("copies the parameters into the ticket's slot",)),
                ),
            ),
            Band("other gradients arrive: the delay grows", "wait", ()),
            Band(
                "when the ticket arrives: arrival t",
                "server",
                (
                    Step("Replayer.next", "simulation/replayer.py", ("the trace says: this ticket arrives now",)),
                    Step("Server.receive", "server.py", ("delay = version now minus version k",)),
                    RECEIVE[0],
                ),
            ),
            Band(
                "the gradient, computed only now",
                "worker",
                (
                    CONTRIBUTOR,
                    BATCH,
                    Step("FlatModule.gradient", "core/flat.py", ("forward and backward at the stored point",)),
                ),
            ),
            Band(
                "the update",
                "server",
                (
                    *RECEIVE[1:],
                    AFTER,
                ),
            ),
        ),
    ),
    "fit": (
        "One gradient through fit",
        (
            Band(
                "server process: the ticket goes out",
                "server",
                (
                    Step("TrainingLoop._issue_tickets", "training/loop.py", ("a worker is idle",)),
                    Step("JournaledRun.issue", "training/run.py", ("calls Server.issue; then a journal entry",)),
                    Step("AsyncOptimizer.query", "optim/base.py", ("copies the parameters into the engine's slot",)),
                    Step(
                        "Engine.submit",
                        "engines/base.py",
                        ("a Job of a few bytes; the slot is shared memory,", "or its content is sent"),
                    ),
                ),
            ),
            Band(
                "worker process; meanwhile others arrive",
                "worker",
                (
                    Step("Worker.__call__", "engines/worker.py", ("reads the point in its slot",)),
                    CONTRIBUTOR,
                    BATCH,
                    Step(
                        "FlatModule.gradient",
                        "core/flat.py",
                        ("forward and backward at its point;", "the gradient goes into the slot"),
                    ),
                ),
            ),
            Band(
                "server process: the gradient arrives",
                "server",
                (
                    Step("Engine.events", "engines/base.py", ("reports the worker's answer, Done",)),
                    Step("JournaledRun.arrive", "training/run.py", ("calls Server.receive; then a journal entry",)),
                    *RECEIVE,
                    AFTER,
                    Step("TrainingLoop._arrived", "training/loop.py", ("history, callbacks, evaluation, next ticket",)),
                ),
            ),
        ),
    ),
}

STYLE = """
  .page { fill: #ffffff } .server { fill: #e8f0fb } .worker { fill: #fdf0dc } .wait { fill: #eeeeee }
  .box { fill: #ffffff; stroke: #5b6b80 } .arrow { stroke: #5b6b80; fill: none } .head { fill: #5b6b80 }
  text { fill: #16202c; font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif }
  .title { font-size: 16px; font-weight: 600 } .band { font-weight: 600 } .file { font-size: 11.5px; fill: #4a5866 }
  .call { font: 600 13px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace }
  @media (prefers-color-scheme: dark) {
    .page { fill: #14181f } .server { fill: #1d2b40 } .worker { fill: #3d2f17 } .wait { fill: #2a2f37 }
    .box { fill: #0e1319; stroke: #8fa1b8 } .arrow { stroke: #8fa1b8 } .head { fill: #8fa1b8 }
    text { fill: #e8edf3 } .file { fill: #aab8c7 }
  }
"""


def draw(title: str, bands: tuple[Band, ...]) -> str:
    """Return a diagram as SVG: boxes from top to bottom, in bands of one colour per place."""
    shapes: list[str] = []
    numbers = iter(range(1, 100))
    y, ends = 40.0, []
    for band in bands:
        top, y = y, y + 26
        shapes.append(f'<text class="band" x="{MARGIN + 10}" y="{top + 19:g}">{escape(band.title)}</text>')
        for step in band.steps:
            height = 45 + 17 * len(step.lines)
            ends.append((y, y + height))
            shapes += box(step, next(numbers), y, height)
            y += height + GAP
        y += -GAP + 10 if band.steps else 2
        shapes.insert(0, f'<rect class="{band.kind}" x="{MARGIN}" y="{top:g}" width="{WIDTH - 2 * MARGIN}" '
                         f'height="{y - top:g}" rx="6"/>')  # fmt: skip
        y += GAP
    arrows = []
    for (_, start), (end, _) in itertools.pairwise(ends):
        x = WIDTH - 44
        arrows.append(f'<path class="arrow" d="M{x} {start:g}V{end - 6:g}"/>')
        arrows.append(f'<path class="head" d="M{x - 4} {end - 7:g}h8l-4 7z"/>')
    height = y + MARGIN - GAP
    size = f'width="{WIDTH}" height="{height:g}" viewBox="0 0 {WIDTH} {height:g}"'
    page = f'<rect class="page" width="{WIDTH}" height="{height:g}" rx="8"/>'
    heading = f'<text class="title" x="{MARGIN}" y="26">{escape(title)}</text>'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">'
    return "\n".join([head, f"<style>{STYLE}</style>", page, heading, *shapes, *arrows, "</svg>"]) + "\n"


def box(step: Step, number: int, y: float, height: float) -> list[str]:
    """Return the shapes of one step."""
    x = MARGIN + 10
    words = [(step.call, "call", 19.0), (step.file, "file", 35.0)]
    words += [(line, "what", 53.0 + 17 * i) for i, line in enumerate(step.lines)]
    shapes = [f'<rect class="box" x="{x}" y="{y:g}" width="{WIDTH - 2 * x}" height="{height:g}" rx="5"/>']
    shapes.append(f'<text class="band" x="{x + 10}" y="{y + 19:g}">{number}</text>')
    return shapes + [
        f'<text class="{kind}" x="{x + 34}" y="{y + down:g}">{escape(text)}</text>' for text, kind, down in words
    ]


if __name__ == "__main__":
    for name, diagram in DIAGRAMS.items():
        path = Path(__file__).with_name(f"{name}.svg")
        path.write_text(draw(*diagram))
        print(path.name)
