"""Seeing a run: a page of a recorded run, and the same page while a run goes on."""

from .live import Live
from .page import report

__all__ = ["Live", "report"]
