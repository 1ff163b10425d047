"""Measurements that a user can repeat: training under random kills, and the capacity of a server."""

from .capacity import Capacity, Costs, capacity, measure_costs, simulated_rate
from .soak import Soak, soak

__all__ = ["Capacity", "Costs", "Soak", "capacity", "measure_costs", "simulated_rate", "soak"]
