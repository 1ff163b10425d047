"""Train along a schedule in one process: a trace replayed through a server."""

from .simulate import Simulation, simulate

__all__ = ["Simulation", "simulate"]
