"""The same server with real workers: an engine moves bytes and reports events, and decides nothing."""

from .base import Died, Done, Engine, Evaluated, Event, Failed, Job, Ready, Slot, WorkerSpec

__all__ = ["Died", "Done", "Engine", "Evaluated", "Event", "Failed", "Job", "Ready", "Slot", "WorkerSpec"]
