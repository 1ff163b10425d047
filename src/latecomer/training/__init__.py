"""Training anyone's model on real workers: what to compute, the loop, checkpoints, replay."""

from ..core.callbacks import Callback, OnArrival, TensorBoard
from ..core.faults import Fault
from .fit import fit
from .replay import Replayed, replay
from .task import Task

__all__ = ["Callback", "Fault", "OnArrival", "Replayed", "Task", "TensorBoard", "fit", "replay"]
