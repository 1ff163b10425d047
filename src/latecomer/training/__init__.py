"""Training anyone's model on real workers: what to compute, the loop, checkpoints, replay."""

from .callbacks import Callback, TensorBoard
from .fit import fit
from .replay import Replayed, replay
from .result import Result
from .task import Task

__all__ = ["Callback", "Replayed", "Result", "Task", "TensorBoard", "fit", "replay"]
