"""A fleet of one device that is none: its runs are staged, and end as the test says."""

from types import SimpleNamespace

from ge_backend.executor.protocol.arena import Arena
from ge_backend.serving.fleet.attempt import FinishedRun, Placed

__all__ = ["FakeFleet"]


class FakeFleet:
    """Places all runs on itself, and ends them one by one.

    Args:
        outcome_of: returns how a run ends, given its index and its order.
        order: that of their ends; None is that of submission.
        lost: how many attempts lose all their runs.

    Attributes:
        solo: of each attempt.
        runs: how many have ended.
        cancelled: the runs that the last attempt was asked not to begin; it asks what is open once
            they have been submitted.
    """

    sessions = ()

    def __init__(self, outcome_of, order=None, lost=0):
        self.arena = Arena(1)
        self.outcome_of, self.order, self.lost = outcome_of, order, lost
        self.solo, self.runs, self.cancelled = [], 0, []

    def here(self):
        """Return no device: the executor is elsewhere."""

    def reserve(self, nbytes, *, keep=False):
        self.arena.reserve(nbytes, keep=keep)

    def place(self, waiting, deadlines, *, tried, solo):
        self.solo.append(solo)
        return FakeAttempt(self, tuple(waiting), lost=tried < self.lost)


class FakeAttempt:
    """As `Attempt`; it is time to look once, before the first run ends."""

    def __init__(self, fleet, indices, *, lost):
        self._fleet, self.open, self.look = fleet, indices, False
        self.parts = [Placed(SimpleNamespace(session=fleet), indices)]
        self._left = [] if lost else list(fleet.order or indices)
        self._looks = [True]

    @property
    def running(self):
        return bool(self._left)

    def submit(self, part, orders):
        self._orders = orders

    def collect(self):
        self.look = bool(self._looks)
        if self._looks:
            self._looks.clear()
            return []
        self._fleet.runs += 1
        index = self._left.pop(0)
        return [FinishedRun(index, self._fleet.outcome_of(index, self._orders[index]), "null:1")]

    def cancel(self, indices):
        self._fleet.cancelled = indices

    def close(self):
        """Nothing is in flight."""
