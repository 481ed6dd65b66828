"""Lanes run so many jobs at once, say who is alone, and outlive every job."""

import functools
import logging
import threading
import time

import pytest

from builders.null_models import comes_true
from ge_backend.device.workspace.pool import Pool
from ge_backend.errors import Cancelled, DeadlineExceeded, DeviceFault, GraphFailed, ProtocolError
from ge_backend.executor.server.lanes import Lanes, result_or_error
from ge_backend.executor.server.queue import Grant, Job


@pytest.fixture
def pool():
    """Place for `a` and `b` beside each other; `large` overlaps both."""
    pool = Pool(4096)
    for holder, nbytes in {"a": 1900, "b": 1900, "large": 4000}.items():
        pool.workspace(holder).place(nbytes)
    yield pool
    assert pool.integrity() == []
    assert pool.figures().leased_bytes == 0


@pytest.fixture
def lanes(pool):
    lanes = Lanes(2, pool, 0)
    yield lanes
    lanes.close()


def submit(lanes, work, notify=lambda: None, *, here=False, **terms):
    """Submit a job that does `work` and has then only to `notify`."""

    def both(grant):
        work(grant)
        return notify

    lanes.submit(Job(work=both, **terms), here=here)


class Gate:
    """A job that waits to be let go, and remembers its turn, or why it had none."""

    def __init__(self):
        self.begun = threading.Event()
        self.go = threading.Event()
        self.dropped = threading.Event()
        self.alone = self.error = None

    def __call__(self, grant):
        self.alone = grant.alone
        self.begun.set()
        self.go.wait(20)

    def drop(self, error):
        self.error = error
        self.dropped.set()


def test_as_many_jobs_run_at_once_as_there_are_lanes(lanes):
    """With two lanes the third job begins when one of the first two has ended."""
    gates = [Gate() for _ in range(3)]
    for gate in gates:
        submit(lanes, gate)
    assert gates[0].begun.wait(20)
    assert gates[1].begun.wait(20)
    assert not gates[2].begun.wait(0.05)
    gates[1].go.set()
    assert gates[2].begun.wait(20)
    for gate in gates:
        gate.go.set()


def test_a_job_is_alone_only_if_nothing_else_runs_or_waits(lanes):
    """The only job is alone; one beside another is not; afterwards one is alone again."""
    first, second, third = Gate(), Gate(), Gate()
    submit(lanes, first)
    assert first.begun.wait(20)
    submit(lanes, second)
    assert second.begun.wait(20)
    first.go.set()
    second.go.set()
    assert comes_true(lambda: len(lanes) == 0)
    submit(lanes, third)
    assert third.begun.wait(20)
    third.go.set()
    assert (first.alone, second.alone, third.alone) == (True, False, True)


def test_a_job_whose_client_is_being_told_is_no_company(lanes):
    """Who is told may ask again before the thread that told goes on: nothing else runs then."""
    first, notifying, again, beside = Gate(), Gate(), Gate(), Gate()
    first.go.set()
    submit(lanes, first, notify=lambda: notifying(Grant(came_ns=0)))
    assert notifying.begun.wait(20)
    submit(lanes, again)
    assert again.begun.wait(20)
    notifying.go.set()
    submit(lanes, beside)
    assert beside.begun.wait(20)
    for gate in (again, beside):
        gate.go.set()
    assert (first.alone, again.alone, beside.alone) == (True, True, False)


def test_jobs_begin_in_the_order_they_came():
    """One lane takes jobs first come, first served."""
    lanes, order = Lanes(1, Pool(0)), []

    def job(index):
        return lambda grant: order.append(index)

    for index in range(50):
        submit(lanes, job(index))
    lanes.close()
    assert order == list(range(50))


def test_who_waits_for_a_job_does_it_itself_where_a_lane_is_free(lanes):
    """In that lane's place: it is done when `submit` returns, and others see a busy lane."""
    seen = []

    def work(grant):
        submit(lanes, beside, here=True)
        seen.append((threading.current_thread(), grant.lane, grant.alone, len(lanes)))

    def beside(grant):
        seen.append((threading.current_thread(), grant.lane, grant.alone, len(lanes)))

    submit(lanes, work, here=True)
    me = threading.current_thread()
    assert seen == [(me, "lane-1", False, 2), (me, "lane-0", True, 1)]
    assert len(lanes) == 0


def test_a_job_that_has_to_wait_is_left_to_a_lane(lanes):
    """Who has submitted it goes on, and may cancel it."""
    gates, done = [Gate(), Gate()], threading.Event()
    for gate in gates:
        submit(lanes, gate)
    threads = []
    submit(lanes, lambda _: threads.append(threading.current_thread()), notify=done.set, here=True)
    assert threads == []
    for gate in gates:
        gate.go.set()
    assert done.wait(20)
    assert threads[0] is not threading.current_thread()


@pytest.mark.parametrize(
    ("count", "pool_bytes", "apart"), [(1, 0, True), (2, 0, False), (1, 9, False)]
)
def test_a_measurement_takes_the_only_lane_from_no_run(count, pool_bytes, apart):
    """The calling thread makes it; with several lanes, or a pool, it is a job as others are."""
    lanes, here, names = Lanes(count, Pool(pool_bytes), 0), threading.current_thread().name, []

    def work(grant):
        names.append((threading.current_thread().name == here, grant.lane))
        return done.set

    done = threading.Event()
    lanes.measure(Job(work=work, measures=True))
    assert done.wait(20)
    lanes.close()
    assert names == [(apart, f"lane-{int(apart)}")]


def test_closing_waits_for_what_is_measured_beside_the_only_lane():
    """Its owner frees the graph afterwards."""
    lanes, gate = Lanes(1, Pool(0), 0), Gate()

    def work(grant):
        gate(grant)
        return bool

    measuring = threading.Thread(target=lanes.measure, args=(Job(work=work, measures=True),))
    measuring.start()
    assert gate.begun.wait(20)
    closing = threading.Thread(target=lanes.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    gate.go.set()
    closing.join(20)
    measuring.join(20)
    assert not closing.is_alive()


def test_finishing_waits_for_what_runs_and_begins_nothing_more():
    """What waits is neither done nor dropped: its owner finds the process gone."""
    lanes, running, waiting = Lanes(1, Pool(0)), Gate(), Gate()
    submit(lanes, running)
    submit(lanes, waiting, drop=waiting.drop)
    assert running.begun.wait(20)
    assert not lanes.finish(0.05)
    running.go.set()
    assert lanes.finish(5)
    assert not waiting.begun.wait(0.05)
    assert not waiting.dropped.is_set()


def test_closing_lets_queued_jobs_finish():
    """What was submitted before the end is still done."""
    lanes, done = Lanes(2, Pool(0)), []
    for _ in range(20):
        submit(lanes, lambda grant: done.append(time.sleep(0.001)))
    lanes.close()
    assert len(done) == 20


def test_a_job_that_raises_costs_no_lane(lanes, caplog):
    """More failing jobs than lanes are logged, and the next job still runs."""

    def broken(grant):
        raise ValueError("broken on purpose")

    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            submit(lanes, broken)
        gate = Gate()
        gate.go.set()
        submit(lanes, gate)
        assert gate.begun.wait(20)
    lanes.close()
    assert caplog.text.count("broken on purpose") >= 5


def test_a_solo_job_waits_for_the_others_and_keeps_them_waiting(lanes):
    """A solo job begins when nothing runs, is alone, and the next begins when it has ended."""
    first, solo, after = Gate(), Gate(), Gate()
    submit(lanes, first)
    assert first.begun.wait(20)
    submit(lanes, solo, solo=True)
    assert not solo.begun.wait(0.05)
    submit(lanes, after)
    first.go.set()
    assert solo.begun.wait(20)
    assert not after.begun.wait(0.05)
    solo.go.set()
    assert after.begun.wait(20)
    after.go.set()
    assert (solo.alone, after.alone) == (True, True)


def test_a_solo_job_comes_through_a_stream_of_others():
    """With three lanes always full of work a solo job still has its turn."""
    lanes, stop, solo = Lanes(3, Pool(0)), threading.Event(), Gate()
    solo.go.set()

    def stream(grant):
        time.sleep(0.002)
        if not stop.is_set():
            submit(lanes, stream)

    for _ in range(6):
        submit(lanes, stream)
    time.sleep(0.02)
    submit(lanes, solo, solo=True)
    came = solo.begun.wait(20)
    stop.set()
    time.sleep(0.05)
    lanes.close()
    assert came


def test_many_solo_jobs_never_overlap_with_anything():
    """Whatever the mix, nothing runs beside a solo job, and all jobs are done."""
    lanes = Lanes(4, Pool(0))
    lock, running, seen, overlaps = threading.Lock(), [], [], []

    def job(index, solo):
        def work(grant):
            with lock:
                if running and (solo or any(running)):
                    overlaps.append(index)
                running.append(solo)
            time.sleep(0.001)
            with lock:
                running.remove(solo)
                seen.append(index)

        return work

    for index in range(120):
        solo = index % 3 == 0
        submit(lanes, job(index, solo), solo=solo)
    lanes.close()
    assert sorted(seen) == list(range(120))
    assert overlaps == []


def test_an_idle_lane_keeps_no_job(lanes):
    """A job that has ended is freed, and with it the arena it had mapped, before the next comes."""
    freed = threading.Event()

    class Job:
        def __call__(self, grant):
            pass

        def __del__(self):
            freed.set()

    submit(lanes, Job())
    assert freed.wait(20)


def test_overlapping_jobs_wait_for_each_other_and_others_pass(lanes):
    """With a lane free, a job whose bytes are busy waits, and one with other bytes begins."""
    first, again, other = Gate(), Gate(), Gate()
    submit(lanes, first, holder="a")
    assert first.begun.wait(20)
    submit(lanes, again, holder="a")
    submit(lanes, other, holder="b")
    assert other.begun.wait(20)
    assert not again.begun.is_set()
    first.go.set()
    assert again.begun.wait(20)
    for gate in (again, other):
        gate.go.set()


def test_bytes_are_free_before_the_client_is_told(lanes):
    """While an answer is on its way the next one computes; a lane is taken until it is sent."""
    first, after, notifying = Gate(), Gate(), Gate()
    first.go.set()
    submit(lanes, first, notify=lambda: notifying(Grant(came_ns=0)), holder="a")
    assert notifying.begun.wait(20)
    submit(lanes, after, holder="a")
    assert after.begun.wait(20)
    assert len(lanes) == 2
    for gate in (notifying, after):
        gate.go.set()


def test_nothing_begins_before_the_client_of_a_solo_job_was_told(lanes):
    """Else an executor that dies over the next job would seem to have died over this one."""
    solo, after, notifying = Gate(), Gate(), Gate()
    solo.go.set()
    submit(lanes, solo, notify=lambda: notifying(Grant(came_ns=0)), holder="a", solo=True)
    assert notifying.begun.wait(20)
    submit(lanes, after, holder="b")
    assert not after.begun.wait(0.05)
    notifying.go.set()
    assert after.begun.wait(20)
    after.go.set()


def test_an_answer_that_cannot_be_told_costs_no_lane(lanes, caplog):
    """What is raised then is logged, and the bytes are free all the same."""

    def broken():
        raise ValueError("broken on purpose")

    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            submit(lanes, lambda grant: None, notify=broken, holder="a")
        gate = Gate()
        gate.go.set()
        submit(lanes, gate, holder="large")
        assert gate.begun.wait(20)
    assert caplog.text.count("broken on purpose") >= 3


def test_a_large_job_comes_through_a_stream_of_small_ones(lanes):
    """With both small places always wanted, the one that overlaps both still has its turn."""
    stop, large = threading.Event(), Gate()
    large.go.set()

    def stream(holder):
        def work(grant):
            if not stop.is_set():
                submit(lanes, work, holder=holder)

        return work

    for holder in "aabb":
        submit(lanes, stream(holder), holder=holder)
    submit(lanes, large, holder="large")
    came = large.begun.wait(30)
    stop.set()
    assert came


def test_a_low_priority_comes_through_a_stream_of_higher_ones(lanes):
    """With urgent jobs always waiting, one of the lowest priority still has its turn."""
    stop, low = threading.Event(), Gate()
    low.go.set()

    def stream(grant):
        if not stop.is_set():
            submit(lanes, stream, holder="a", priority=1)

    for _ in range(4):
        submit(lanes, stream, holder="a", priority=1)
    submit(lanes, low, holder="large", priority=3)
    came = low.begun.wait(30)
    stop.set()
    assert came


def test_a_deadline_that_passes_is_answered_while_every_lane_is_busy(lanes):
    """A job that could not begin in time is dropped at that time, and gives its place back."""
    blocks, late, after = [Gate(), Gate()], Gate(), Gate()
    submit(lanes, blocks[0], holder="a")
    submit(lanes, blocks[1])
    assert all(block.begun.wait(20) for block in blocks)
    deadline_ns = time.monotonic_ns() + 20_000_000
    submit(lanes, late, drop=late.drop, holder="large", deadline_ns=deadline_ns)
    submit(lanes, after, holder="b")
    assert late.dropped.wait(20)
    assert isinstance(late.error, DeadlineExceeded)
    blocks[1].go.set()
    assert after.begun.wait(20)  # no longer behind the large one, though `a` still runs
    assert not late.begun.is_set()
    for gate in (blocks[0], after):
        gate.go.set()


def test_deadlines_pass_in_their_own_order(lanes):
    """One that is submitted later and ends sooner is answered sooner."""
    blocks = [Gate(), Gate()]
    for block in blocks:
        submit(lanes, block)
        assert block.begun.wait(20)
    dropped, notifying = [], Gate()
    submit(lanes, Gate(), drop=lambda _: notifying(Grant(came_ns=0)), deadline_ns=1)
    assert notifying.begun.wait(20)  # so that all wait before the first of them is dropped
    now_ns = time.monotonic_ns()
    for ms in (900, 300, 600):
        drop = functools.partial(lambda ms, error: dropped.append(ms), ms)
        submit(lanes, Gate(), drop=drop, deadline_ns=now_ns + ms * 1_000_000)
    notifying.go.set()
    assert comes_true(lambda: len(dropped) == 3)
    assert dropped == [300, 600, 900]
    for block in blocks:
        block.go.set()


def test_what_a_client_that_left_had_waiting_is_dropped_at_once(lanes):
    """Its jobs give their places back to others; those of others stay."""
    owner, block, leaving, staying = object(), Gate(), Gate(), Gate()
    submit(lanes, block, holder="a", owner=owner)
    assert block.begun.wait(20)
    submit(lanes, leaving, drop=leaving.drop, holder="large", owner=owner)
    submit(lanes, staying, holder="b", owner=object())
    assert not staying.begun.is_set()
    lanes.cancel(owner)
    assert isinstance(leaving.error, Cancelled)
    assert staying.begun.wait(20)
    for gate in (block, staying):
        gate.go.set()


def test_a_drop_that_raises_ends_nothing(lanes, caplog):
    """A defect in the answer to a late job is logged; the next deadline is kept."""
    blocks, late = [Gate(), Gate()], Gate()
    for block in blocks:
        submit(lanes, block)
        assert block.begun.wait(20)

    def broken(error):
        raise ValueError("broken on purpose")

    now_ns = time.monotonic_ns()
    with caplog.at_level(logging.ERROR):
        submit(lanes, Gate(), drop=broken, deadline_ns=now_ns + 1_000_000)
        submit(lanes, late, drop=late.drop, deadline_ns=now_ns + 30_000_000)
        assert late.dropped.wait(20)
    assert "broken on purpose" in caplog.text
    for block in blocks:
        block.go.set()


def test_closing_waits_for_jobs_that_wait_for_bytes(pool):
    """Whether they run or are dropped in the end, none is forgotten."""
    lanes, done, dropped = Lanes(2, pool), [], []
    gate = Gate()
    submit(lanes, gate, holder="large")
    assert gate.begun.wait(20)
    for _ in range(5):
        submit(lanes, done.append, holder="a")
    deadline_ns = time.monotonic_ns() + 1_000_000
    submit(lanes, done.append, drop=dropped.append, holder="b", deadline_ns=deadline_ns)
    closing = threading.Thread(target=lanes.close)
    closing.start()
    assert comes_true(lambda: len(dropped) == 1)
    gate.go.set()
    closing.join(20)
    assert not closing.is_alive()
    assert (len(done), len(dropped)) == (5, 1)


def test_the_oldest_run_is_known(lanes):
    """A run counts from its beginning to its end; what is no run does not count."""
    compiling, first, second = Gate(), Gate(), Gate()
    assert lanes.oldest_ns() == 0
    submit(lanes, compiling, bounded=False)
    assert compiling.begun.wait(20)
    assert lanes.oldest_ns() == 0
    submit(lanes, first)
    assert first.begun.wait(20)
    began_ns = lanes.oldest_ns()
    assert 0 <= time.monotonic_ns() - began_ns < 5_000_000_000
    compiling.go.set()
    submit(lanes, second)
    assert second.begun.wait(20)
    assert lanes.oldest_ns() == began_ns
    first.go.set()
    assert comes_true(lambda: lanes.oldest_ns() > began_ns, 5)
    second.go.set()
    assert comes_true(lambda: lanes.oldest_ns() == 0, 5)


def test_a_run_whose_work_is_done_is_not_the_oldest_one(lanes):
    """Its client may be slow to be told, which is no fault of the device."""
    notifying = Gate()
    submit(lanes, lambda grant: None, notify=lambda: notifying(Grant(came_ns=0)))
    assert notifying.begun.wait(20)
    assert lanes.oldest_ns() == 0
    notifying.go.set()


@pytest.mark.parametrize("here", [False, True])
def test_a_job_whose_holder_has_no_place_is_dropped_with_the_reason(lanes, here):
    """Outside of the queue's lock, and no lane is lost to it."""
    for _ in range(4):
        gate = Gate()
        submit(lanes, gate, holder="gone", drop=gate.drop, here=here)
        assert gate.dropped.wait(20)
        assert isinstance(gate.error, ProtocolError)
        assert not gate.begun.is_set()
    done = [threading.Event() for _ in range(4)]
    for event in done:
        submit(lanes, lambda _, event=event: event.set(), holder="a")
    assert all(event.wait(20) for event in done)
    assert comes_true(lambda: len(lanes) == 0)


def test_whatever_is_raised_becomes_an_error_to_answer_with():
    """A fault of the device is told of; what nobody foresaw names itself."""
    faults = []

    def fault():
        raise DeviceFault("gone")

    assert result_or_error(lambda: 3, lambda: faults.append(1)) == 3
    assert isinstance(result_or_error(fault, lambda: faults.append(1)), DeviceFault)
    assert faults == [1]
    unforeseen = result_or_error(lambda: {}["x"], lambda: faults.append(2))
    assert isinstance(unforeseen, GraphFailed)
    assert "KeyError" in str(unforeseen)
    assert faults == [1]


def test_a_run_that_nothing_stands_beside_takes_a_lane_at_once(lanes):
    """It is alone, is seen to run, and what comes meanwhile may run beside it, and is not alone."""
    grant = lanes.begin_alone()
    assert grant.alone
    assert len(lanes) == 1
    assert lanes.oldest_ns() == grant.came_ns
    gates = [Gate(), Gate()]
    for gate in gates:
        submit(lanes, gate)
    assert gates[0].begun.wait(20)
    assert not gates[0].alone
    assert not gates[1].begun.wait(0.05)
    lanes.end_alone(grant)
    assert gates[1].begun.wait(20)
    for gate in gates:
        gate.go.set()
    assert comes_true(lambda: len(lanes) == 0)
    assert lanes.oldest_ns() == 0


def test_no_run_is_alone_beside_another(lanes):
    """Neither while a job runs, nor while another such run does, nor once lanes begin no more."""
    gate = Gate()
    submit(lanes, gate)
    assert gate.begun.wait(20)
    assert lanes.begin_alone() is None
    gate.go.set()
    assert comes_true(lambda: len(lanes) == 0)
    grant = lanes.begin_alone()
    assert lanes.begin_alone() is None
    assert not lanes.finish(0.01)
    lanes.end_alone(grant)
    assert lanes.finish(20)
    assert lanes.begin_alone() is None
