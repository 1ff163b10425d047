"""The record of a run: schema, validation, Parquet in and out, summaries."""

from .schema import COLUMNS, STATUSES, Header, TraceError
from .table import Trace

__all__ = ["COLUMNS", "STATUSES", "Header", "Trace", "TraceError"]
