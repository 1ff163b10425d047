"""The demo: its runs; figures, table and page are beside them."""

from .runs import METHOD_OPTIONS, DemoRun, make_trace, problem, run_all

__all__ = ["METHOD_OPTIONS", "DemoRun", "make_trace", "problem", "run_all"]
