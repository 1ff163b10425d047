"""Training anyone's model on real workers: what to compute, the loop, checkpoints, replay."""

from ..core.callbacks import Callback, OnArrival, TensorBoard
from .fit import fit
from .replay import Replayed, replay
from .task import Task

__all__ = ["Callback", "OnArrival", "Replayed", "Task", "TensorBoard", "fit", "replay"]
