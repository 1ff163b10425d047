"""Engines run real workers: an engine moves bytes and reports events; the server makes all decisions."""

from .base import Died, Done, Engine, Evaluated, Event, Failed, Job, Ready, Slot, WorkerSpec

__all__ = ["Died", "Done", "Engine", "Evaluated", "Event", "Failed", "Job", "Ready", "Slot", "WorkerSpec"]
