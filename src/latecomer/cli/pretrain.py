"""``python -m latecomer.cli.pretrain``: make, or add, the weights that the CIFAR-10 part of docs/evidence.md needs."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

from .. import data
from .._util.checks import whole_number
from .._util.files import writable
from .._util.revision import commit
from ..core.gradient import one_thread
from ..paper.pretraining import STAND_INS, TASKS, Task, pretrain
from ..paper.weights import Weights, add_file, add_trained, read_list
from ._entry import run as run_command
from ._progress import counting


@dataclass(frozen=True)
class Pretrain:
    """Pre-train a ResNet-18 on CIFAR-10's images without their labels; kill it at any time and start it again.

    Writes the weights as safetensors and adds them, with their SHA-256, to weights.json beside them.

    Example: python -m latecomer.cli.pretrain --task rotations
    """

    task: Task = "rotations"
    """What to predict: by how much an image was turned, or which image is another view of it."""
    steps: int | None = None
    """Updates of 128 images; as many as docs/evidence.md says if left out, about an hour for rotations."""
    seed: int = 0
    """Initialises the network and draws the images."""
    width: float = 0.25
    """Factor of the channels."""
    folder: Path = Path("docs/results/paper/weights")
    """Where the weights go."""
    checkpoints: Path = Path("runs/pretraining")
    """Where unfinished pre-training is kept."""
    given: Path | None = None
    """Train nothing: add this file, such as resnet18-f37072fd.pth, as the first choice."""

    def run(self, console: Console) -> None:
        """Train, or add a file."""
        writable(self.folder)
        if self.given is not None:
            entry = add_file(self.folder, self.given)
            console.print(f"{self.given} is the first choice from now on: {entry.name}", soft_wrap=True)
            return
        steps = STAND_INS[self.task] if self.steps is None else whole_number("steps", self.steps, least=1)
        wanted = (self.task, steps, self.seed, self.width)
        for entry in read_list(self.folder):
            if (entry.task, entry.steps, entry.seed, entry.width) == wanted:
                console.print(f"{self.folder / entry.file} is there already", soft_wrap=True)
                return
        data.get("cifar10")
        task = TASKS[self.task](width=self.width)
        unfinished = self.checkpoints / f"{self.task}-{steps}-{self.seed}-{self.width:g}"
        begun = time.process_time()
        with one_thread(), counting(f"pre-training, {self.task}", console) as progress:
            made = pretrain(task, steps, self.seed, task.lr, unfinished, progress)
        plain = Weights(
            "", "", self.width, self.task, steps, self.seed, float(made.final["accuracy"]),
            round(time.process_time() - begun, 1), commit(), torch.__version__,
        )  # fmt: skip
        entry = add_trained(self.folder, made.state, plain)
        words = f"{self.folder / entry.file}: accuracy of the task {entry.accuracy:.3f}, SHA-256 {entry.sha256}"
        console.print(words, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(run_command(Pretrain, "python -m latecomer.cli.pretrain", "Make weights to fine-tune from."))
