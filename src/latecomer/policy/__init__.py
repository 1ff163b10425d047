"""Policies: what the server does with an arrival. The paper's methods use `Async`, which applies every arrival."""

from .base import Async, Decision, Policy, Ticket
from .known import POLICIES, PolicyLike, as_policy
from .rounds import Synchronous

__all__ = ["POLICIES", "Async", "Decision", "Policy", "PolicyLike", "Synchronous", "Ticket", "as_policy"]
