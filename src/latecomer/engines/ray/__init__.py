"""Workers on a Ray cluster: Ray places, starts and supervises them; tensors take a way of their own."""

from .engine import RayEngine

__all__ = ["RayEngine"]
