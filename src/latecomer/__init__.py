"""Latecomer: asynchronous training in which every late gradient gets the weight it would have had without delay."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import (
        bench,
        comparison,
        data,
        delays,
        engines,
        experiments,
        monitor,
        optim,
        paper,
        planning,
        policy,
        problems,
        report,
        testing,
        theory,
        trace,
        training,
    )
    from .comparison import compare
    from .core.result import Run
    from .planning import plan
    from .server import Server
    from .simulation import simulate
    from .trace import Trace
    from .training import Task, fit

__version__ = "0.2.0"

__all__ = [
    "Run",
    "Server",
    "Task",
    "Trace",
    "__version__",
    "bench",
    "compare",
    "comparison",
    "data",
    "delays",
    "engines",
    "experiments",
    "fit",
    "monitor",
    "optim",
    "paper",
    "plan",
    "planning",
    "policy",
    "problems",
    "report",
    "simulate",
    "testing",
    "theory",
    "trace",
    "training",
]

_HOMES = {
    "Run": "core.result",
    "Server": "server",
    "Task": "training",
    "Trace": "trace",
    "compare": "comparison",
    "fit": "training",
    "plan": "planning",
    "simulate": "simulation",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: torch is slow to import, and ``latecomer --help`` does not need it."""
    if name in _HOMES:
        value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    elif name in __all__:
        value = import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
