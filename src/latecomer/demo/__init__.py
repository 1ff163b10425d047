"""The demo: runs, table, figures and page."""

from .runs import METHOD_OPTIONS, DemoRun, SlowNines, make_trace, run_all

__all__ = ["METHOD_OPTIONS", "DemoRun", "SlowNines", "make_trace", "run_all"]
