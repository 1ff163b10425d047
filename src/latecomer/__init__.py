"""Latecomer: asynchronous training in which every late gradient gets the place it would have had in time."""

from . import delays, optim, problems, theory
from .server import Server
from .simulation import Run, simulate
from .trace import Trace

__version__ = "0.1.0"

__all__ = ["Run", "Server", "Trace", "__version__", "delays", "optim", "problems", "simulate", "theory"]
