"""Measurements that a user can repeat: workers under kills, against waiting for the slowest, how many are enough."""

from .capacity import Capacity, Costs, capacity, measure_costs, simulated_rate
from .soak import Soak, soak
from .straggler import Straggler

__all__ = ["Capacity", "Costs", "Soak", "Straggler", "capacity", "measure_costs", "simulated_rate", "soak"]
