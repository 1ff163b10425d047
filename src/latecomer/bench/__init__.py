"""Measurements that a user can repeat: what real workers do under kills, and against waiting for the slowest."""

from .soak import Soak, soak
from .straggler import Straggler

__all__ = ["Soak", "Straggler", "soak"]
