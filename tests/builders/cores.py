"""Cores on which every run that is alone has been so for long."""

import itertools

from ge_backend.device.machine.threads import OTHERS_IDLE_S, Cores


def idle_cores(count):
    """Return cores on whose clock so much passes between two looks."""
    ticks = itertools.count()
    return Cores(count, lambda: 2 * OTHERS_IDLE_S * next(ticks))
