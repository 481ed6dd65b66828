"""Models that share one workspace pool: who waits, who is refused, and who gives way."""

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from builders.null_models import comes_true, order, run_values, running, sums
from builders.sharing import Runner, Sharing
from fakes.null_faults import Fault
from ge_backend.errors import DeadlineExceeded, OutOfMemory
from ge_backend.executor.protocol.messages import PrepareInput
from ge_backend.executor.server import queue as waiting

# The example with a gigabyte as a kilobyte; of a device of 32 some is always taken.
KIB = 1024
MEMORY, WEIGHTS, POOL, A, B = (size * KIB for size in (31, 9, 12, 8, 6))


@pytest.fixture
def sharing(tmp_path):
    made = []

    def make(**given):
        made.append(Sharing(tmp_path, **given))
        return made[-1]

    yield make
    for sharing in made:
        sharing.close()


def inputs_of(*shape):
    return (PrepareInput(name="x", dtype="FP32", shape=shape, fill=1.0),)


def test_two_models_that_do_not_fit_separately_share_one_pool(sharing):
    """The issue's example: both load, run correctly, and wait only for each other."""
    models = {
        "a": {"weights_bytes": WEIGHTS, "workspace_bytes": A, "cost_ms": {"*": 1}},
        "b": {"weights_bytes": WEIGHTS, "workspace_bytes": B, "cost_ms": {"*": 1}},
    }
    apart = sharing(pool_bytes=0, memory_bytes=MEMORY)
    apart.load("a", **models["a"])
    with pytest.raises(OutOfMemory):
        apart.load("b", **models["b"])

    shared = sharing(pool_bytes=POOL, memory_bytes=MEMORY)
    sessions = [shared.load(name, **given) for name, given in models.items()]
    runners = [Runner(session, range(50)) for session in sessions]
    expected = [3.0 * value for value in range(50)]
    assert [sums(runner.join()) for runner in runners] == [expected, expected]
    assert shared.device.counts.most_running == 1
    assert shared.defects() == []


def test_models_whose_ranges_are_disjoint_run_side_by_side(sharing):
    """With room for both neither waits for the other's bytes."""
    shared = sharing(pool_bytes=15 * KIB)
    meeting = threading.Barrier(2, timeout=10)
    sessions = [
        shared.load("a", workspace_bytes=A),
        shared.load("b", workspace_bytes=B),
    ]
    _meet_in_runs(shared, meeting)
    runners = [Runner(session, [1]) for session in sessions]
    outcomes = [runner.join()[0] for runner in runners]
    assert sums(outcomes) == [3, 3]
    assert [outcome.done.held_up_ns for outcome in outcomes] == [0, 0]


@contextlib.contextmanager
def held(shared, of=""):
    """Hold runs of a model up in its graph until the end of the block; yield the values as they begin.

    Without `of` those of all models.
    """
    strike, go, seen = shared.device.faults.strike, threading.Event(), []

    def wait(event, inputs, path):
        strike(event, inputs, path)
        if event == "run" and of in path:
            seen.append(float(inputs["x"][0, 0]))
            go.wait(30)

    shared.device.faults.strike = wait
    try:
        yield seen
    finally:
        go.set()


def _meet_in_runs(shared, meeting):
    """Let every run wait in the graph until all parties of the barrier run."""
    strike = shared.device.faults.strike

    def meet(event, inputs, path):
        strike(event, inputs, path)
        if event == "run":
            meeting.wait()

    shared.device.faults.strike = meet


def test_who_waits_for_bytes_says_how_long(sharing):
    """The reply tells how much of the waiting was for the workspace."""
    shared = sharing(pool_bytes=POOL)
    a = shared.load("a", workspace_bytes=A)
    b = shared.load("b", workspace_bytes=B)
    with held(shared):
        first = Runner(a, [1])
        assert comes_true(lambda: shared.device.counts.running)
        second = Runner(b, [2])
        assert comes_true(lambda: len(shared.executor.lanes) == 2)
    (outcome,) = second.join()
    assert 0 < outcome.done.held_up_ns <= outcome.done.queue_ns
    assert first.join()[0].done.held_up_ns == 0


def test_a_model_larger_than_the_pool_is_refused_at_load(sharing):
    """The error names what is needed, what there is, and who has what; the others go on."""
    shared = sharing(pool_bytes=POOL)
    a = shared.load("a", workspace_bytes=A)
    with pytest.raises(OutOfMemory) as caught:
        shared.load("large", workspace_bytes=13 * KIB)
    for text in ("large/1/model.null", "13 KiB", "12 KiB", "a/1/model.null #1 8 KiB"):
        assert text in str(caught.value)
    assert sums(run_values(a, 1)) == [3]
    assert list(shared.figures().holders) == ["a/1/model.null #1"]


def test_a_compiled_model_is_refused_when_it_is_compiled(sharing):
    """With static shapes the need is known then; the former buckets go on."""
    shared = sharing(pool_bytes=POOL)
    needs = {"2x3": 4 * KIB, "8x3": 13 * KIB}
    session = shared.load("a", workspace_bytes=needs, static_shapes=True)
    session.compile([{"x": (2, 3)}])
    session.prepare(inputs_of(2, 3), 1)
    with pytest.raises(OutOfMemory, match="needs 13 KiB"):
        session.compile([{"x": (8, 3)}])
    assert sums(run_values(session, 1)) == [3]
    assert shared.defects() == []


def test_a_compiled_model_grows_while_it_runs(sharing):
    """Buckets that are compiled while others run get a larger range, and no run is spoilt."""
    shared = sharing(pool_bytes=POOL)
    needs = {"2x3": 2 * KIB, "4x3": 4 * KIB, "8x3": 8 * KIB}
    given = {"workspace_bytes": needs, "static_shapes": True, "cost_ms": {"*": 1}}
    session = shared.load("a", **given)
    session.compile([{"x": (2, 3)}])
    session.prepare(inputs_of(2, 3), 1)
    other = shared.session(session.source)
    neighbour = shared.load("b", workspace_bytes=B, cost_ms={"*": 1})
    runners = [Runner(session, range(30)), Runner(neighbour, range(30))]
    for rows in (4, 8):
        other.compile([{"x": (rows, 3)}])
        other.prepare(inputs_of(rows, 3), 1)
    expected = [3.0 * value for value in range(30)]
    assert [sums(runner.join()) for runner in runners] == [expected, expected]
    assert shared.figures().holders["a/1/model.null #1"] == 8 * KIB


def test_what_was_measured_is_placed_and_refused_if_it_does_not_fit(sharing):
    """An engine with scratch of its own has its place after warm-up; too much fails warm-up."""
    shared = sharing(pool_bytes=POOL)
    session = shared.load("a", workspace_bytes={"2x3": 2 * KIB, "4x3": 5 * KIB, "8x3": 13 * KIB})
    session.prepare(inputs_of(2, 3), 1)
    assert shared.figures().holders == {"a/1/model.null #1": 2 * KIB}
    session.prepare(inputs_of(4, 3), 1)
    assert shared.figures().holders == {"a/1/model.null #1": 5 * KIB}
    with pytest.raises(OutOfMemory, match="needs 13 KiB"):
        session.prepare(inputs_of(8, 3), 1)
    assert sums(run_values(session, 1)) == [3]


def test_a_run_that_needs_more_than_the_pool_fails_alone(sharing):
    """Out of memory at run time is that request's error, with the numbers; the pool is as before."""
    shared = sharing(pool_bytes=POOL)
    session = shared.load("a", workspace_bytes={"*": 2 * KIB, "9x3": 13 * KIB})
    session.prepare(inputs_of(2, 3), 1)
    session.reserve(4096)
    orders = [order(session, 1), order(session, 2, rows=9), order(session, 3)]
    outcomes = dict(running(session, orders))
    assert sums([outcomes[index] for index in range(3)]) == [3, "OutOfMemory", 9]
    assert "needs 13 KiB of workspace" in str(outcomes[1].error)
    assert shared.defects() == []


def test_a_fault_in_a_run_gives_its_bytes_back(sharing):
    """An engine that runs out of memory by itself is an error for that run alone."""
    shared = sharing(pool_bytes=POOL)
    a = shared.load("a", workspace_bytes=A)
    b = shared.load("b", workspace_bytes=B)
    shared.device.inject(Fault(on="run", do="out_of_memory", nth=2))
    shared.device.inject(Fault(on="run", do="fail", nth=3))
    outcomes = run_values(a, 1, 2, 3, 4)
    assert sums(outcomes) == [3, "OutOfMemory", "GraphFailed", 12]
    loaded = "loaded: a/1/model.null #1, b/1/model.null #2"
    assert f"(the device has 1024 MiB of 1 GiB free; {loaded})" in str(outcomes[1].error)
    assert sums(run_values(b, 5)) == [15]
    assert shared.figures().leased_bytes == 0


def test_measured_models_never_use_more_than_the_pool_together(sharing):
    """Four models of 5 in a pool of 12, on four lanes: never more than two run at once."""
    shared = sharing(pool_bytes=12_000, lanes=4)
    sessions = [
        shared.load(name, workspace_bytes={"*": 5_000}, cost_ms={"*": 2}) for name in "abcd"
    ]
    for session in sessions:
        session.prepare(inputs_of(2, 3), 1)
    runners = [Runner(session, range(20)) for session in sessions]
    assert [sums(runner.join()) for runner in runners] == [[3.0 * v for v in range(20)]] * 4
    assert shared.device.counts.most_scratch <= 12_000
    assert shared.figures().peak_bytes <= 12_000


def test_one_measured_model_runs_beside_itself(sharing):
    """Two runs of one graph go side by side where the pool has room for both."""
    shared = sharing(pool_bytes=12_000)
    session = shared.load("a", workspace_bytes={"*": 5_000})
    session.prepare(inputs_of(2, 3), 1)
    _meet_in_runs(shared, threading.Barrier(2, timeout=10))
    assert sums(run_values(session, 1, 2)) == [3, 6]


def test_nothing_else_runs_while_a_new_model_is_measured_first(sharing):
    """Until something is known of a model its measurement takes the whole pool."""
    shared = sharing(pool_bytes=POOL)
    a = shared.load("a", workspace_bytes=A, cost_ms={"*": 2})
    runner = Runner(a, range(20))
    new = shared.load("new", workspace_bytes={"*": KIB}, cost_ms={"*": 2})
    new.prepare(inputs_of(2, 3), 3)
    assert sums(runner.join()) == [3.0 * value for value in range(20)]
    assert shared.device.counts.most_scratch <= POOL


# What a stub asks that takes nothing of the pool: of the model that is measured, or of another.
NEEDS_NO_BYTES = {
    "load": lambda shared, measured, other: shared.session(measured.source),
    "compile": lambda shared, measured, other: measured.compile([{"x": (2, 3)}]),
    "inspect": lambda shared, measured, other: measured.inspect(),
    "measure": lambda shared, measured, other: other.prepare(inputs_of(2, 3), 1),
    "run": lambda shared, measured, other: run_values(other, 1),
}


@pytest.mark.parametrize("asked", NEEDS_NO_BYTES)
def test_a_measurement_that_waits_for_bytes_holds_up_nobody_who_needs_none(sharing, asked):
    """Neither of its own model, by another connection, nor of another, which is measured, too."""
    shared = sharing(pool_bytes=POOL)
    a = shared.load("a", workspace_bytes=A)
    b = shared.load("b", workspace_bytes={"*": B})
    beside, other = shared.session(b.source), shared.load("other", workspace_bytes=0)
    b.compile([{"x": (2, 3)}])
    with ThreadPoolExecutor(2) as threads, held(shared, of="/a/"):
        first = Runner(a, [1])
        assert comes_true(lambda: shared.device.counts.running)
        measured = threads.submit(b.prepare, inputs_of(2, 3), 1)
        assert comes_true(lambda: len(shared.executor.lanes) == 2)
        threads.submit(NEEDS_NO_BYTES[asked], shared, beside, other).result(timeout=10)
        assert (measured.done(), first.outcomes) == (False, [])
    assert measured.result().cost_ns > 0
    assert sums(first.join()) == [3]


def test_models_of_unknown_need_wait_for_nobody(sharing):
    """A graph that cannot tell runs beside one that has the whole pool."""
    shared = sharing(pool_bytes=POOL)
    whole = shared.load("whole", workspace_bytes=POOL)
    unknown = shared.load("unknown", workspace_bytes={"*": 0})
    _meet_in_runs(shared, threading.Barrier(2, timeout=10))
    runners = [Runner(session, [1]) for session in (whole, unknown)]
    assert [sums(runner.join()) for runner in runners] == [[3], [3]]


def test_idle_models_are_closed_when_memory_is_short(sharing):
    """A graph that nobody holds, and that only lingers, makes room for a new one; it is counted."""
    shared = sharing(pool_bytes=POOL, memory_bytes=MEMORY)
    idle = shared.load("idle", weights_bytes=WEIGHTS, workspace_bytes=A)
    held = shared.load("held", weights_bytes=WEIGHTS, workspace_bytes=A)
    shared.leave(idle)
    assert comes_true(lambda: shared.executor.num_connections == 1)
    new = shared.load("new", weights_bytes=WEIGHTS, workspace_bytes=B)
    assert sums(run_values(new, 1)) == [3]
    assert sums(run_values(held, 1)) == [3]
    report = new.inspect()
    assert (report.evictions, report.graphs) == (1, 2)
    with pytest.raises(OutOfMemory):
        shared.load("more", weights_bytes=WEIGHTS)
    assert new.inspect().evictions == 1


def test_a_late_run_is_answered_while_it_waits_for_bytes(sharing):
    """Its time passes while a neighbour has its bytes; it is told then, and not afterwards."""
    shared = sharing(pool_bytes=POOL)
    a = shared.load("a", workspace_bytes=A)
    b = shared.load("b", workspace_bytes=B)
    with held(shared):
        first = Runner(a, [1])
        assert comes_true(lambda: shared.device.counts.running)
        late = order(b, 2, deadline_ns=time.monotonic_ns() + 20_000_000)
        ((_, outcome),) = running(b, [late])
        assert isinstance(outcome.error, DeadlineExceeded)
        assert shared.device.counts.running == 1
    assert sums(first.join()) == [3]
    assert shared.device.counts.runs == 1


def test_who_leaves_while_waiting_gives_the_place_back(sharing):
    """The claim of a stub that dies does not hold up those behind it."""
    shared = sharing(pool_bytes=12_000, lanes=3)
    a, b = (shared.load(name, workspace_bytes=5_000) for name in "ab")
    large = shared.load("large", workspace_bytes=12_000)
    _meet_in_runs(shared, threading.Barrier(2, timeout=30))
    first = Runner(a, [1])
    assert comes_true(lambda: shared.device.counts.running == 1)
    large.in_flight().submit(0, order(large, 1))
    assert comes_true(lambda: len(shared.executor.lanes) == 2)
    second = Runner(b, [2])  # behind the large one, though its bytes are free
    assert comes_true(lambda: len(shared.executor.lanes) == 3)
    assert shared.device.counts.running == 1
    shared.leave(large)
    # Only if it runs beside the first one do the two meet.
    assert sums(second.join()) == [6]
    assert sums(first.join()) == [3]


def test_a_run_that_nobody_wants_any_more_gives_its_place_back(sharing):
    """While it waits its client gives up: it is not begun, and those behind it go on."""
    shared = sharing(pool_bytes=12_000, lanes=3)
    a, b = (shared.load(name, workspace_bytes=5_000) for name in "ab")
    large = shared.load("large", workspace_bytes=12_000)
    _meet_in_runs(shared, threading.Barrier(2, timeout=30))
    first = Runner(a, [1])
    assert comes_true(lambda: shared.device.counts.running == 1)
    gone = threading.Event()
    given_up = Runner(large, [7], unwanted=gone.is_set)
    assert comes_true(lambda: len(shared.executor.lanes) == 2)
    second = Runner(b, [2])  # behind the large one, though its bytes are free
    assert comes_true(lambda: len(shared.executor.lanes) == 3)
    gone.set()
    assert sums(given_up.join()) == ["Cancelled"]
    # Only if it runs beside the first one do the two meet.
    assert sums(second.join()) == [6]
    assert sums(first.join()) == [3]
    assert shared.device.counts.runs == 2


def test_an_urgent_model_goes_first(sharing, monkeypatch):
    """Of those that wait for the same bytes the one with the highest priority is next."""
    monkeypatch.setattr(waiting, "PRIORITY_STEP_NS", 10**12)
    shared = sharing(pool_bytes=POOL)
    names = {"low": 3, "mid": 2, "high": 1}
    sessions = {
        name: shared.load(name, workspace_bytes=A, priority=priority)
        for name, priority in names.items()
    }
    block = shared.load("block", workspace_bytes=A)
    with held(shared) as seen:
        runners = [Runner(block, [0])]
        assert comes_true(lambda: seen == [0])
        for count, (name, session) in enumerate(sessions.items(), start=1):
            runners.append(Runner(session, [names[name]]))
            assert comes_true(lambda count=count: len(shared.executor.lanes) == 1 + count)
    for runner in runners:
        runner.join()
    assert seen == [0, 1, 2, 3]


def test_the_report_tells_of_the_pool(sharing):
    """Size, holders, what is and was in use, and that all of it agrees."""
    shared = sharing(pool_bytes=POOL)
    session = shared.load("a", workspace_bytes=A)
    run_values(session, 1)
    report = session.inspect()
    assert report.pool.size_bytes == POOL
    assert report.pool.holders == {"a/1/model.null #1": A}
    assert (report.pool.leased_bytes, report.pool.peak_bytes) == (0, A + 64)
    assert report.pool.placed_bytes == A + 64
    assert (report.defects, report.evictions) == ((), 0)


def test_without_a_pool_nothing_waits_and_nothing_is_placed(sharing):
    """The default: every graph has scratch of its own, and runs of one graph go side by side."""
    shared = sharing(pool_bytes=0)
    session = shared.load("a", workspace_bytes={"*": 5_000})
    _meet_in_runs(shared, threading.Barrier(2, timeout=10))
    outcomes = run_values(session, 1, 2)
    assert sums(outcomes) == [3, 6]
    assert session.inspect().pool.size_bytes == 0
    assert np.all([outcome.done.held_up_ns == 0 for outcome in outcomes])
