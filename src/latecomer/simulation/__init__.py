"""Train along a schedule in one process: a trace replayed through a server."""

from .simulate import Simulation, check_problem, simulate

__all__ = ["Simulation", "check_problem", "simulate"]
