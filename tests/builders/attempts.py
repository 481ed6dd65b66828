"""Runs on a fleet, as a pipeline makes them: attempts until each has ended."""

import contextlib

from ge_backend.errors import GeError

__all__ = ["runs_of"]


def runs_of(
    fleet,
    costs,
    stage,
    unwanted=lambda index: False,
    deadlines=(),
    meanwhile=lambda: None,
    *,
    solo=False,
):
    """Yield each run as it ends, once, with its outcome.

    Args:
        fleet: places them.
        costs: estimated nanoseconds of each run, in the order of submission.
        stage: returns the orders of the chosen runs, given the session of their device, which ones,
            and `again`: something has been staged there before.
        unwanted: whether a run is wanted no more.
        deadlines: of each run; empty where none has one.
        meanwhile: called when runs have just been submitted, before any is waited for.
        solo: each runs with nothing beside it from the first time on.
    """
    waiting, tried = dict(enumerate(costs)), 0
    while waiting:
        placed = fleet.place(waiting, deadlines, tried=tried, solo=solo)
        with contextlib.closing(placed) as attempt:
            for part in attempt.parts:
                try:
                    orders = stage(part.device.session, part.indices, again=tried > 0)
                except GeError as error:
                    orders = [error] * len(part.indices)
                attempt.submit(part, orders)
            tried += bool(attempt.parts)
            meanwhile()
            while attempt.running:
                for ended in attempt.collect():
                    del waiting[ended.index]
                    yield ended
                if attempt.look:
                    attempt.cancel([index for index in attempt.open if unwanted(index)])
