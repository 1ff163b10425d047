"""Latecomer: asynchronous training in which every late gradient gets the place it would have had in time."""

from . import optim

__version__ = "0.1.0"

__all__ = ["__version__", "optim"]
