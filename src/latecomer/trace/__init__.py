"""Traces: the schedule of a run as a table, with validation, Parquet files and summaries."""

from .schema import COLUMNS, STATUSES, Header, TraceError
from .table import Trace

__all__ = ["COLUMNS", "STATUSES", "Header", "Trace", "TraceError"]
