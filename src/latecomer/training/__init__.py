"""Training anyone's model on real workers: what to compute, the loop, checkpoints, replay."""

from ..core.callbacks import Callback, OnArrival
from ..core.faults import Fault
from ..core.loggers import MLflow, TensorBoard, WeightsAndBiases
from .fit import fit
from .replay import Replayed, replay
from .task import Task

__all__ = [
    "Callback",
    "Fault",
    "MLflow",
    "OnArrival",
    "Replayed",
    "Task",
    "TensorBoard",
    "WeightsAndBiases",
    "fit",
    "replay",
]
