"""Measurements that a user can repeat: workers under kills, and how many workers are enough."""

from .capacity import Capacity, Costs, capacity, measure_costs, simulated_rate
from .soak import Soak, soak

__all__ = ["Capacity", "Costs", "Soak", "capacity", "measure_costs", "simulated_rate", "soak"]
