"""The record of a run: schema, validation, Parquet in and out, summaries."""

from .schema import STATUSES, Header, TraceError
from .table import Trace

__all__ = ["STATUSES", "Header", "Trace", "TraceError"]
