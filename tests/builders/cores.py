"""Cores on which every run that is alone has been so for long."""

import itertools

from ge_backend.device.machine.threads import LONELY_S, Cores


def lonely_cores(count):
    """Return cores on whose clock so much passes between two looks."""
    ticks = itertools.count()
    return Cores(count, lambda: 2 * LONELY_S * next(ticks))
