"""Choosing between one thread and all cores, by load and by what runs take."""

import contextlib
import threading
import weakref

import numpy as np
import pytest

from builders.null_models import comes_true
from ge_backend.device.machine import threads
from ge_backend.device.machine.threads import (
    GIVEN_UP_S,
    IN_A_ROW,
    LONELY_S,
    PATIENCE,
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
        self.cores = Cores(count, lambda: clock.now)
        self.given_up = []
        self.choice = ThreadChoice(self.cores, 0, NARROW, open_wide, self.freeing)
        self.wait()

    @contextlib.contextmanager
    def freeing(self):
        yield
        self.given_up.append(True)

    def wait(self, seconds=2 * LONELY_S):
        self.clock.now += seconds

    def run(self, elements=24, *, exclusive=True):
        with self.choice.session(elements, exclusive=exclusive) as session:
            self.clock.now += self.seconds[session]
        return session

    def runs(self, count, elements=24, **given):
        return [self.run(elements, **given) for _ in range(count)]

    def opened(self):
        """Let the wide session be opened, which takes a lonely run."""
        self.run()
        assert comes_true(lambda: self.choice._wide is not None)
        return self


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def test_runs_are_narrow_until_they_have_been_alone_for_a_while(clock):
    """The first one is, and each for a while after a run that had company."""
    bench = Bench(clock).opened()
    assert WIDE in bench.runs(8)
    bench.run(exclusive=False)
    while bench.cores._company + LONELY_S > clock.now:
        assert bench.run() == NARROW
    assert bench.run() == WIDE


def test_the_company_of_one_graph_is_that_of_all_on_the_device(clock):
    """Cores are shared by graphs, so that what runs beside one makes the others narrow."""
    bench = Bench(clock).opened()
    bench.runs(8)
    other = ThreadChoice(bench.cores, 1, NARROW, lambda: WIDE)
    with other.session(1, exclusive=False):
        pass
    assert bench.run() == NARROW


@pytest.mark.parametrize(
    ("narrow", "wide", "chosen"),
    [(0.010, 0.005, WIDE), (0.010, 0.0085, WIDE), (0.010, 0.0095, NARROW), (0.010, 0.02, NARROW)],
)
def test_the_runs_themselves_decide_size_by_size(clock, narrow, wide, chosen):
    """A few of each kind; then all cores are used from a gain of 15 percent on."""
    bench = Bench(clock, narrow=narrow, wide=wide).opened()
    assert sorted(set(bench.runs(2 * IN_A_ROW))) == [NARROW, WIDE]
    assert bench.runs(20) == [chosen] * 20
    if chosen == NARROW:
        assert sorted(set(bench.runs(6, 10_000))) == [NARROW, WIDE]


def test_where_a_smaller_size_gains_a_larger_one_does_without_being_tried(clock):
    """Nearly: one run of so many is of the other kind, for each size."""
    bench = Bench(clock).opened()
    bench.runs(12)
    assert bench.runs(20, 10_000) == [WIDE] * 20
    assert bench.runs(100, 10_000).count(NARROW) == 1


def test_where_a_larger_size_does_not_gain_a_smaller_one_does_not_either(clock):
    """A size between one that gains and one that does not is told by the smaller one."""
    bench = Bench(clock, narrow=0.010, wide=0.010).opened()
    bench.runs(12, 1000)
    assert bench.runs(20, 10) == [NARROW] * 20
    bench.seconds[WIDE] = 0.005
    bench.runs(12, 4000)
    assert bench.runs(20, 10_000) == [WIDE] * 20
    assert bench.runs(20, 500) == [NARROW] * 20


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
    assert chosen[100:].count(WIDE) > 0.95 * len(chosen[100:])


def test_a_run_behind_one_of_the_other_kind_decides_nothing(clock):
    """It finds the other's weights in the cache, and takes longer than those behind it."""
    bench, before = Bench(clock, wide=0.007).opened(), NARROW
    usual, seen = bench.seconds, []
    for _ in range(2 * IN_A_ROW + 20):
        bench.seconds = {kind: usual[kind] * (1 if kind == before else 2) for kind in usual}
        before = bench.run()
        seen.append(before)
    assert seen[2 * IN_A_ROW :] == [WIDE] * 20


def test_one_busy_moment_decides_nothing(clock):
    """Each way is judged by the best of its last runs, and the loser is tried again now and then."""
    bench = Bench(clock).opened()
    bench.seconds[WIDE] = 0.09
    bench.runs(2 * IN_A_ROW)
    bench.seconds[WIDE] = 0.005
    seen = bench.runs(620)
    assert seen[:10] == [NARROW] * 10
    assert seen[-10:] == [WIDE] * 10


def test_a_slow_moment_is_compared_with_itself(clock):
    """Wide runs are slow for a while, as narrow ones are, whose last runs are older than that."""
    bench = Bench(clock).opened()
    bench.runs(20)
    bench.seconds = {NARROW: 0.020, WIDE: 0.010}
    assert bench.runs(20)[-10:] == [WIDE] * 10
    bench.seconds = {NARROW: 0.010, WIDE: 0.005}
    assert bench.runs(20) == [WIDE] * 20


def test_a_graph_that_never_gains_gives_its_second_session_up(clock):
    """It holds memory; it is not opened again, for a minute at first, and longer each time."""
    bench = Bench(clock, wide=0.01).opened()
    bench.runs(PATIENCE + 2)
    assert bench.given_up == [True]
    assert set(bench.runs(100)) == {NARROW}
    assert bench.given_up == [True]
    bench.wait(GIVEN_UP_S)
    bench.opened().runs(PATIENCE + 2)
    assert bench.given_up == [True] * 2
    bench.wait(GIVEN_UP_S)
    assert set(bench.runs(100)) == {NARROW}
    assert bench.choice._opening is None
    bench.wait(GIVEN_UP_S)
    bench.opened()


def test_what_was_given_up_while_others_had_the_cores_is_tried_again(clock):
    """All cores were no faster then; a minute later they are, and what was seen before is forgotten."""
    bench = Bench(clock, wide=0.01).opened()
    bench.runs(PATIENCE + 2)
    bench.seconds[WIDE] = 0.005
    bench.wait(GIVEN_UP_S)
    bench.opened().runs(8)
    assert bench.runs(20) == [WIDE] * 20


class Session(str):  # noqa: SLOT000 - slots would let nobody see its end
    """One whose end can be seen; it counts as a wide one."""


def test_what_is_given_up_is_free_before_the_engine_hears_of_it(clock):
    """And not a moment later, when the run that gave it up lets go of it: nobody would see to that."""
    weak, alive = [], []

    def open_wide():
        session = Session(WIDE)
        weak.append(weakref.ref(session))
        return session

    @contextlib.contextmanager
    def freeing():
        yield
        alive.append(weak[0]() is not None)

    bench = Bench(clock, wide=0.01, open_wide=open_wide)
    bench.choice._freeing = freeing
    bench.opened()
    for _ in range(PATIENCE + 2):
        bench.run()
    assert alive == [False]


def test_a_graph_that_gains_at_one_size_keeps_it(clock):
    """Whatever the other sizes say."""
    bench = Bench(clock).opened()
    bench.runs(20, 10_000)
    bench.seconds[WIDE] = 0.02
    bench.runs(3 * PATIENCE, 10)
    assert not bench.given_up
    assert bench.run(10_000) == WIDE


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
    assert not [*size.narrow, *size.wide]


def test_elements_are_counted_over_all_inputs():
    """Scalars count one, empty tensors none."""
    inputs = {"a": np.zeros((2, 3)), "b": np.zeros(()), "c": np.zeros((0, 9))}
    assert num_elements(inputs) == 7
