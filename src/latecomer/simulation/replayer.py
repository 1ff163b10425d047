"""Takes a server through the schedule of a trace."""

from __future__ import annotations

from collections import Counter

import numpy as np

from ..policy import Ticket
from ..server import Server
from ..trace import STATUSES, Trace

__all__ = ["Replayer"]


class Replayer:
    """Issues, loses and cancels tickets and adds workers as a trace has it; the caller receives the contributions.

    A trace records between which two arrivals something happened, and in which order tickets were issued. It does not
    record the order of a loss and an issue to another worker between the same two arrivals. No result depends on that
    order: such a ticket is ended when its worker or its number is needed again, else just before the next arrival.

    Args:
        server: A server, new or in the middle of this trace.
        trace: The schedule.
    """

    def __init__(self, server: Server, trace: Trace) -> None:
        self.server, self.trace = server, trace
        self._columns = trace.columns
        self._ticket, self._worker, self._seen = (trace.columns[name] for name in ("ticket", "worker", "seen"))
        self._filled = -1  # the last arrival after which everything has been done
        self._joined = Counter(at for at, _ in trace.header.joined)
        self._left: dict[int, list[int]] = {}
        for at, worker in trace.header.left:
            self._left.setdefault(at, []).append(worker)
        self._row = int(np.searchsorted(trace.columns["seen"], server.arrivals))  # the next row to issue
        issued = trace.columns["ticket"][: self._row]
        # The row of every ticket that a worker has.
        self._rows = {t.number: int(np.flatnonzero(issued == t.number)[-1]) for t in server.in_flight}
        ended = trace.columns["ended"]
        ending = np.flatnonzero(ended >= 0)
        self._ending = ending[np.argsort(ended[ending], kind="stable")]
        self._end = int(np.searchsorted(ended[self._ending], server.arrivals))  # the next ticket to end

    def next(self) -> Ticket:
        """Do everything before the next arrival, and return the ticket that arrives."""
        self.fill_gap()
        ticket = self.server.find(int(self._ticket[self.trace.rows[self.server.arrivals]]))
        if ticket is None:
            raise ValueError(f"The trace does not match its policy: arrival {self.server.arrivals + 1} was cancelled")
        self._rows.pop(ticket.number, None)
        return ticket

    def fill_gap(self) -> None:
        """Do everything between the last arrival and the next one."""
        now = self.server.arrivals
        if self._filled == now:  # receiving the arrival raised, and is tried again
            return
        self._filled = now
        for _ in range(self._joined.get(now, 0)):
            self.server.join()
        seen, row = self._seen, self._row
        while row < len(seen) and seen[row] == now:
            self._issue(row)
            row += 1
        self._row = row
        while self._end < len(self._ending) and self._columns["ended"][self._ending[self._end]] == now:
            self._take_back(int(self._ending[self._end]))
            self._end += 1
        for worker in self._left.get(now, ()):
            self.server.leave(worker)

    def _issue(self, row: int) -> None:
        c = self._columns
        worker, number = int(self._worker[row]), int(self._ticket[row])
        if len(self._ending):  # the trace has lost or cancelled tickets
            for other in (self.server.holds(worker), self.server.find(number)):
                if other is not None and other.number in self._rows:  # not both times, if both are the same ticket
                    self._take_back(self._rows[other.number])
        ticket = self.server.issue(worker, at=float(c["start"][row]))
        version, sample = c["version"][row], c["sample"][row]
        if ticket.number != number or ticket.version != version or ticket.sample != sample:
            raise ValueError(
                "The trace does not match its policy: was it made with the policy of this run, and with the same "
                f"options? There ticket {number} starts from version {version} with sample {sample}, and here {ticket}"
            )
        self._rows[number] = row

    def _take_back(self, row: int) -> None:
        """Lose or cancel the ticket of this row, unless that has happened already."""
        number = int(self._columns["ticket"][row])
        if self._rows.get(number) != row:
            return
        del self._rows[number]
        ticket = self.server.find(number)
        if ticket is not None:  # else the policy has cancelled it
            lost = self._columns["status"][row] == STATUSES.index("lost")
            (self.server.lose if lost else self.server.cancel)(ticket)
