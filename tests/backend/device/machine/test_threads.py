"""Choosing between one thread and all cores, by load and by what runs take."""

import threading

import numpy as np
import pytest

from builders.null_models import comes_true
from ge_backend.device.machine import threads
from ge_backend.device.machine.threads import (
    LATEST,
    SOONEST,
    TRIAL,
    Cores,
    ThreadChoice,
    num_elements,
)
from ge_backend.errors import ModelError

NARROW, WIDE = "narrow", "wide"


class Clock:
    """Time that passes only when something takes some."""

    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(threads.time, "perf_counter", lambda: self.now)


class Bench:
    """A graph whose runs take what they are told."""

    def __init__(self, clock, *, narrow=0.010, wide=0.005, count=2, open_wide=lambda: WIDE):
        self.clock = clock
        self.seconds = {NARROW: narrow, WIDE: wide}
        self.choice = ThreadChoice(Cores(count), 0, NARROW, open_wide)

    def run(self, elements=24, *, exclusive=True):
        with self.choice.session(elements, exclusive=exclusive) as session:
            self.clock.now += self.seconds[session]
        return session

    def runs(self, count, elements=24, **given):
        return [self.run(elements, **given) for _ in range(count)]

    def opened(self):
        """Let the wide session be opened, which takes a run that is alone."""
        self.run()
        assert comes_true(lambda: self.choice._wide is not None)
        return self


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def test_only_runs_that_are_alone_are_wide(clock):
    """The first one is not, as the wide session is opened behind it."""
    bench = Bench(clock)
    assert bench.run(exclusive=False) == NARROW
    assert bench.choice._wide is None
    bench.opened()
    assert bench.run() == WIDE
    assert bench.run(exclusive=False) == NARROW
    assert bench.run() == WIDE


def test_a_share_of_all_cores_leaves_no_choice():
    """Nor does a number of threads that was said."""
    for cores, said in ((Cores(4, 4), 0), (Cores(4, 2), 2)):
        choice = ThreadChoice(cores, said, NARROW, lambda: WIDE)
        with choice.session(1, exclusive=True) as session:
            assert session == NARROW
        assert choice._opened.value is None
    choice = ThreadChoice(Cores(4, 2), 0, NARROW, lambda: WIDE)
    with choice.session(1, exclusive=True):
        pass
    assert comes_true(lambda: choice._wide == WIDE)


ONE_TRIAL = SOONEST + TRIAL


def test_a_lone_run_is_wide_from_the_first_on(clock):
    """Nothing has to be compared before that, and a trial is a few runs in a row."""
    bench = Bench(clock).opened()
    seen = bench.runs(ONE_TRIAL + 10)
    assert seen == [WIDE] * (SOONEST - 1) + [NARROW] * TRIAL + [WIDE] * 11


@pytest.mark.parametrize(
    ("narrow", "wide", "chosen"),
    [(0.010, 0.005, WIDE), (0.010, 0.009, WIDE), (0.010, 0.0095, NARROW), (0.010, 0.02, NARROW)],
)
def test_the_runs_themselves_decide_size_by_size(clock, narrow, wide, chosen):
    """All cores are used from a gain of 10 percent on."""
    bench = Bench(clock, narrow=narrow, wide=wide).opened()
    bench.runs(ONE_TRIAL)
    assert bench.runs(10) == [chosen] * 10
    assert bench.run(10_000) == WIDE


@pytest.mark.parametrize(("wide", "chosen"), [(0.00006, NARROW), (0.00004, WIDE)])
def test_a_few_microseconds_are_no_gain(clock, wide, chosen):
    """Waking another core takes as long, and takes it from the client."""
    bench = Bench(clock, narrow=0.0001, wide=wide).opened()
    bench.runs(ONE_TRIAL)
    assert bench.runs(10) == [chosen] * 10


def test_trials_become_rare_where_nothing_changes(clock):
    """And are bounded: so much of all runs is of the kind that lost."""
    bench = Bench(clock).opened()
    assert bench.runs(2000).count(NARROW) < 0.02 * 2000
    bench.runs(10_000)
    assert TRIAL <= bench.runs(LATEST + TRIAL).count(NARROW) <= 2 * TRIAL


@pytest.mark.parametrize(("fixed", "gain"), [(0, 0.8), (64, 0.7)])
@pytest.mark.parametrize("seed", range(10))
def test_unequal_texts_are_compared_with_their_like(clock, seed, fixed, gain):
    """A short text on one core says nothing against a longer one on all of them."""
    drawn = np.random.default_rng(seed)
    bench, chosen = Bench(clock).opened(), []
    for elements in drawn.integers(33, 64, 600).tolist():
        narrow_s = (fixed + elements) * 1e-4
        bench.seconds = {NARROW: narrow_s, WIDE: narrow_s * gain}
        chosen.append(bench.run(elements))
    assert chosen.count(WIDE) > 0.9 * len(chosen)
    assert WIDE in chosen[-TRIAL - 1 :]


def test_a_run_behind_one_of_the_other_kind_decides_nothing(clock):
    """It finds the other's weights in the cache, and takes longer than those behind it."""
    bench, before = Bench(clock, narrow=0.004).opened(), NARROW
    usual, seen = bench.seconds, []
    for _ in range(ONE_TRIAL + 10):
        bench.seconds = {kind: usual[kind] * (1 if kind == before else 2) for kind in usual}
        before = bench.run()
        seen.append(before)
    assert seen[-10:] == [NARROW] * 10


@pytest.mark.parametrize("slow", [3, 16])
def test_a_busy_moment_decides_nothing_for_long(clock, slow):
    """The shortest of the last runs counts, and what has lost is tried again soon."""
    bench = Bench(clock).opened()
    bench.runs(SOONEST - slow)
    bench.seconds[WIDE] = 0.09
    bench.runs(slow)
    bench.seconds[WIDE] = 0.005
    seen = bench.runs(3 * ONE_TRIAL)
    assert seen.count(NARROW) <= ONE_TRIAL + 2 * TRIAL
    assert seen[-10:] == [WIDE] * 10


def test_what_turns_is_found_out(clock):
    """Another program has had the cores for a while, and lets go of them."""
    bench = Bench(clock).opened()
    bench.runs(100)
    bench.seconds[WIDE] = 0.02
    bench.runs(LATEST)
    assert bench.runs(10).count(NARROW) > 5
    bench.seconds[WIDE] = 0.005
    bench.runs(LATEST)
    assert bench.runs(10).count(WIDE) > 5


def test_the_wide_session_is_opened_once_and_nobody_waits_for_it(clock):
    """Runs are narrow meanwhile; closing waits for it."""
    begin, opened = threading.Event(), []

    def open_wide():
        begin.wait(10)
        opened.append(1)
        return WIDE

    bench = Bench(clock, open_wide=open_wide)
    assert set(bench.runs(20)) == {NARROW}
    begin.set()
    bench.choice.close()
    assert opened == [1]
    assert bench.choice._wide is None


def test_a_wide_session_that_cannot_be_opened_leaves_the_narrow_one(clock, caplog):
    """Said once in the log."""

    def refuse():
        raise ModelError("no memory")

    bench = Bench(clock, open_wide=refuse)
    bench.run()
    assert comes_true(lambda: "no memory" in caplog.text)
    assert set(bench.runs(20)) == {NARROW}
    assert caplog.text.count("no memory") == 1


def test_without_a_choice_every_run_is_narrow(clock):
    """Fixed threads, or one core."""
    assert set(Bench(clock, open_wide=None).runs(20)) == {NARROW}


def test_a_run_that_fails_says_nothing_about_time(clock):
    """Its error is the caller's."""
    bench = Bench(clock).opened()
    with pytest.raises(ModelError), bench.choice.session(1000, exclusive=True):
        raise ModelError("no")
    size = bench.choice._sizes[threads._class_of(1000)]
    assert not any(size.times.values())


def test_where_every_run_fails_wide_stays_the_rule(clock):
    """A trial that no run came out of compares nothing."""
    bench, failed = Bench(clock).opened(), ModelError("no")
    for _ in range(ONE_TRIAL + 10):
        run = bench.choice.session(1000, exclusive=True)
        last = run.__enter__()
        run.__exit__(ModelError, failed, None)
    assert last == WIDE


def test_elements_are_counted_over_all_inputs():
    """Scalars count one, empty tensors none."""
    inputs = {"a": np.zeros((2, 3)), "b": np.zeros(()), "c": np.zeros((0, 9))}
    assert num_elements(inputs) == 7
