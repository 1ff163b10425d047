"""Train along a schedule in one process: a trace replayed through a server."""

from .simulate import Run, simulate

__all__ = ["Run", "simulate"]
