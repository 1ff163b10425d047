"""The demo: runs, figures, table and page."""

from .runs import METHOD_OPTIONS, DemoRun, make_trace, problem, run_all

__all__ = ["METHOD_OPTIONS", "DemoRun", "make_trace", "problem", "run_all"]
