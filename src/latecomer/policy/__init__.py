"""Policies: what the server does with an arrival. The paper's methods use `Async`, which applies every arrival."""

from .base import Async, Decision, Policy, Ticket
from .known import POLICIES, PolicyLike, as_policy
from .ringleader import Ringleader
from .ringmaster import Ringmaster, RingmasterStop
from .rounds import AsyncMiniBatch, FedBuff, Rennala, RennalaStop, Synchronous

__all__ = [
    "POLICIES",
    "Async",
    "AsyncMiniBatch",
    "Decision",
    "FedBuff",
    "Policy",
    "PolicyLike",
    "Rennala",
    "RennalaStop",
    "Ringleader",
    "Ringmaster",
    "RingmasterStop",
    "Synchronous",
    "Ticket",
    "as_policy",
]
