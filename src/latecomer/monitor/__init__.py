"""Seeing a run: a page of a recorded run, and the same page while a run goes on."""

from .page import report

__all__ = ["report"]
