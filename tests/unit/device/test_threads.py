"""Choosing between one thread and all cores."""

import numpy as np
import pytest

from ge_backend.device import threads
from ge_backend.device.threads import ThreadChoice, num_elements


class Clock:
    """Runs that take the given seconds, in turn, on a clock of their own."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(threads.time, "perf_counter", lambda: self.now)

    def run(self, *seconds):
        left = list(seconds)

        def once():
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return once


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def test_before_any_measurement_runs_are_narrow():
    """Nothing measured means one thread."""
    choice = ThreadChoice()
    assert not choice.wide(100)
    assert not choice.ever_wide


@pytest.mark.parametrize(
    ("narrow", "wide", "chosen"),
    [(0.010, 0.005, True), (0.010, 0.0085, True), (0.010, 0.0095, False), (0.010, 0.02, False)],
)
def test_only_a_clear_gain_is_wide(clock, narrow, wide, chosen):
    """All cores are used from a gain of 15 percent on."""
    choice = ThreadChoice()
    choice.measure(24, clock.run(narrow), clock.run(wide))
    assert choice.wide(24) is chosen
    assert choice.ever_wide is chosen


def test_the_first_runs_do_not_count(clock):
    """A slow first wide run, which allocates, is no argument against it."""
    choice = ThreadChoice()
    choice.measure(24, clock.run(0.01), clock.run(0.2, 0.005))
    assert choice.wide(24)


def test_one_busy_moment_decides_nothing(clock):
    """Each way is judged by its best run."""
    choice = ThreadChoice()
    choice.measure(24, clock.run(0.01), clock.run(0.005, 0.09, 0.005))
    assert choice.wide(24)


def test_a_slow_graph_is_not_measured_for_long(clock):
    """Where the first pair of runs takes the budget, it is the only one."""
    choice = ThreadChoice()
    choice.measure(24, clock.run(3.0), clock.run(1.0))
    assert clock.now == 4.0
    assert choice.wide(24)


def test_a_run_follows_the_nearest_measured_size(clock):
    """Sizes between two measured ones go with the one that is nearer by ratio."""
    choice = ThreadChoice()
    choice.measure(1000, clock.run(1.0), clock.run(2.0))
    choice.measure(10, clock.run(1.0), clock.run(0.1))
    assert [choice.wide(size) for size in (0, 10, 99, 101, 10**6)] == [
        True,
        True,
        True,
        False,
        False,
    ]


def test_elements_are_counted_over_all_inputs():
    """Scalars count one, empty tensors none."""
    inputs = {"a": np.zeros((2, 3)), "b": np.zeros(()), "c": np.zeros((0, 9))}
    assert num_elements(inputs) == 7
