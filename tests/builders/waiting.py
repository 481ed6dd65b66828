"""Waiting for what other threads and processes do."""

import time


def comes_true(condition, seconds=30.0):
    """Return whether the condition holds within that time; it is not asked again once it has."""
    end = time.monotonic() + seconds
    while not (held := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return held
