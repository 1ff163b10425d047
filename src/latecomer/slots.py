"""Memory for the points of tickets in flight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["FlatSlots", "Points", "SlotPool", "VersionSlots"]

Points = list[list[Tensor]]
"""The points a ticket evaluates: one list of tensors per point, one tensor per parameter, the iterate first."""
Split = Callable[[Tensor], list[Tensor]]


class SlotPool:
    """Memory for the points of tickets in flight; a slot is reused as soon as its ticket has ended.

    An engine passes its own pool, in memory that its workers can read.

    Args:
        make: Returns memory for the points of one ticket.
    """

    def __init__(self, make: Callable[[], Points]) -> None:
        self._make = make
        self._held: dict[int, Points] = {}
        self._free: list[Points] = []

    def take(self, number: int) -> Points:
        """Return memory for the points of this ticket."""
        points = self._held[number] = self._free.pop() if self._free else self._make()
        return points

    def fill(self, number: int, write: Callable[[Points], None], version: int | None = None) -> None:
        """Take memory for the points of this ticket and have them written.

        Args:
            number: The ticket.
            write: Writes the points.
            version: Tickets with the same one have the same points; None if this one shares them with no other.
        """
        write(self.take(number))

    def release(self, number: int) -> None:
        """Free the memory of this ticket."""
        self._free.append(self._held.pop(number))

    def __getitem__(self, number: int) -> Points:
        return self._held[number]

    def state_dict(self) -> dict[str, Any]:
        """Return the points in use, and which of them each ticket has; tensors are not copied."""
        points: list[Points] = []
        places: dict[int, int] = {}
        for held in self._held.values():
            if id(held) not in places:
                places[id(held)] = len(points)
                points.append(held)
        return {"points": points, "tickets": {number: places[id(held)] for number, held in self._held.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Hold the points of a state dict instead of those in use."""
        # Cloned before any memory is released: the state may share its tensors with it.
        saved = [[[tensor.clone() for tensor in point] for point in points] for points in state["points"]]
        for number in list(self._held):
            self.release(number)
        holder: dict[int, int] = {}
        for number, index in state["tickets"].items():
            if index in holder and self.share(holder[index], number):
                continue
            holder[index] = number
            for point, saved_point in zip(self.take(number), saved[index], strict=True):
                torch._foreach_copy_(point, saved_point)

    def share(self, number: int, other: int) -> bool:
        """Let another ticket have the points of this one, without a copy; False if each has memory of its own."""
        return False


class FlatSlots(SlotPool):
    """One flat vector per point, which the server sees in the shapes of the optimizer's parameters.

    Args:
        make: Returns the memory of one ticket.
        points_of: Returns the vectors in that memory; by default it is a list of them.
    """

    def __init__(self, make: Callable[[], Any], points_of: Callable[[Any], list[Tensor]] = list) -> None:
        super().__init__(list)
        self._make_memory, self._points_of = make, points_of
        self._unused: list[Any] = []
        self._memory: dict[int, Any] = {}
        self._split: Split = lambda vector: [vector]
        self._staging: list[Tensor] = []
        self._cross: Callable[[Tensor, Tensor], Tensor] = Tensor.copy_

    def arrange(self, split: Split, staging: list[Tensor], cross: Callable[[Tensor, Tensor], Tensor]) -> None:
        """Say how the server sees a vector.

        Args:
            split: Returns a flat vector as the tensors of the optimizer.
            staging: Vectors on the optimizer's device, if that is another one than the slots': points are written into
                them first, so that each crosses in one copy. Empty if it is the same.
            cross: Copies a vector of another device: the target first, then the source.
        """
        self._split, self._staging, self._cross = split, staging, cross

    def memory(self, number: int) -> Any:
        """Return the memory of a ticket."""
        return self._memory[number]

    def take(self, number: int) -> Points:
        """Return memory for the points of this ticket, in the optimizer's shapes."""
        memory = self._memory[number] = self._unused.pop() if self._unused else self._make_memory()
        points = self._held[number] = [self._split(vector) for vector in self._points_of(memory)]
        return points

    def fill(self, number: int, write: Callable[[Points], None], version: int | None = None) -> None:
        """Take memory for the points of this ticket and have them written, on the optimizer's device first."""
        if not self._staging:
            super().fill(number, write)
            return
        write([self._split(vector) for vector in self._staging])
        self.take(number)
        for vector, written in zip(self._points_of(self._memory[number]), self._staging, strict=True):
            self._cross(vector, written)

    def release(self, number: int) -> None:
        """Free the memory of this ticket."""
        del self._held[number]
        self._unused.append(self._memory.pop(number))


class VersionSlots(FlatSlots):
    """Memory in this process, of which tickets that start from one version share a part.

    So memory grows with the versions in flight, and not with the workers: all of them start from the first version.
    Nothing may write to a point but what fills it.

    Args:
        make: Returns the memory of one ticket.
    """

    def __init__(self, make: Callable[[], list[Tensor]]) -> None:
        super().__init__(make)
        self._newest: tuple[int, Any, Points] | None = None  # a version, its memory and its points
        self._users: dict[int, int] = {}  # how many tickets use a memory, by its identity

    def take(self, number: int) -> Points:
        """Return memory for the points of this ticket alone."""
        points = super().take(number)
        self._users[id(self._memory[number])] = 1
        return points

    def fill(self, number: int, write: Callable[[Points], None], version: int | None = None) -> None:
        """Take memory for the points of this ticket: that of its version, or a new one that is written."""
        if version is not None and self._newest is not None and self._newest[0] == version:
            self._join(number, *self._newest[1:])
            return
        super().fill(number, write)
        if version is not None:
            self._newest = (version, self._memory[number], self._held[number])

    def share(self, number: int, other: int) -> bool:
        """Let another ticket have the points of this one, without a copy."""
        self._join(other, self._memory[number], self._held[number])
        return True

    def _join(self, number: int, memory: Any, points: Points) -> None:
        self._memory[number], self._held[number] = memory, points
        self._users[id(memory)] += 1

    def release(self, number: int) -> None:
        """Free the memory of this ticket, unless another one uses it."""
        memory = self._memory[number]
        self._users[id(memory)] -= 1
        if self._users[id(memory)]:
            del self._held[number], self._memory[number]
            return
        del self._users[id(memory)]
        if self._newest is not None and self._newest[1] is memory:
            self._newest = None
        super().release(number)
