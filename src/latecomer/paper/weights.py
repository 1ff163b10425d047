"""Weights to fine-tune from: which there are, where each came from, and the SHA-256 that names it.

A folder has the files and ``weights.json``, which is committed beside them. A run names its weights by their hash.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import safetensors.torch
from torch import Tensor

from .._util.files import atomic
from ..problems.resnet import keep_weights, read_weights

__all__ = ["Weights", "add_file", "add_trained", "install", "read_list"]

LIST = "weights.json"
GIVEN = "given"
"""Task of a file that was given, such as ImageNet weights: the first choice."""


@dataclass(frozen=True)
class Weights:
    """One file of weights.

    Args:
        file: Its name in the folder; empty if it is not kept there.
        sha256: Its hash.
        width: Factor of the channels of its ResNet-18.
        task: What it was trained on; ``"given"`` if the file was given.
        steps: Number of updates of the pre-training.
        seed: Its seed.
        accuracy: What the task's accuracy on held-out images was at the end.
        seconds: CPU seconds of the pre-training, those after the last interruption.
        commit: Revision of the code that made it.
        torch: Version of torch that made it.
    """

    file: str
    sha256: str
    width: float
    task: str
    steps: int = 0
    seed: int = 0
    accuracy: float | None = None
    seconds: float | None = None
    commit: str | None = None
    torch: str | None = None

    @property
    def name(self) -> str:
        """What a run calls them."""
        return f"sha256:{self.sha256}"


def read_list(folder: Path) -> list[Weights]:
    """Return what the folder's list has, in its order; nothing if there is no list."""
    path = folder / LIST
    try:
        return [Weights(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}): take it from the repository again") from None


def _append(folder: Path, entry: Weights) -> Weights:
    entries = [each for each in read_list(folder) if each.sha256 != entry.sha256]
    text = json.dumps([asdict(each) for each in [*entries, entry]], indent=1) + "\n"
    with atomic(folder / LIST) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return entry


def add_trained(folder: Path, state: Mapping[str, Tensor], entry: Weights) -> Weights:
    """Write a state dict as safetensors under a name that has its hash, and add it to the list.

    Args:
        folder: The folder.
        state: The state dict.
        entry: All but file and hash.
    """
    content = safetensors.torch.save({name: value.clone().contiguous() for name, value in state.items()})
    digest = hashlib.sha256(content).hexdigest()
    file = f"resnet18-width{entry.width:g}-{entry.task}-{digest[:12]}.safetensors"
    with atomic(folder / file) as temporary:
        temporary.write_bytes(content)
    return _append(folder, Weights(**{**asdict(entry), "file": file, "sha256": digest}))


def add_file(folder: Path, path: Path) -> Weights:
    """Add a file of ResNet-18 weights that was given, such as ImageNet's; it is kept by hash, not in the folder."""
    state, digest = read_weights(path)
    if "conv1.weight" not in state:
        raise ValueError(f"{path} has no conv1.weight: pass the state dict of a ResNet-18")
    keep_weights(path)
    return _append(folder, Weights("", digest, state["conv1.weight"].shape[0] / 64, GIVEN))


def install(folder: Path) -> None:
    """Copy the folder's files to where runs find them by hash."""
    for entry in read_list(folder):
        if entry.file and keep_weights(folder / entry.file) != entry.name:
            raise ValueError(f"{folder / entry.file} is not the file of {folder / LIST}: take it from the repository")
