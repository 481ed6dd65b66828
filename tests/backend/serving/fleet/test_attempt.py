"""An attempt at runs on several devices: each is submitted once, and ends, is lost or given up."""

import contextlib
import threading
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from builders.attempts import runs_of
from builders.null_models import comes_true, order, sums
from fakes.null_faults import Fault
from ge_backend.errors import (
    Cancelled,
    DeadlineExceeded,
    ExecutorLost,
    OutOfMemory,
    ProtocolError,
    StateLost,
    TensorsLost,
)
from ge_backend.executor.client.in_flight import InFlight
from ge_backend.executor.protocol.messages import DeviceRows, GatherInput
from ge_backend.executor.server.heartbeat import PERIOD_S
from ge_backend.serving.fleet import attempt
from ge_backend.serving.fleet.attempt import SILENT_NS

# What a run has; once it has begun, an attempt's clock is set ahead, and it is late.
TIME_NS, AHEAD_NS = 60_000_000_000, 61_000_000_000


def test_each_device_knows_the_last_run_that_it_gets(fleets, monkeypatch):
    """Nothing follows it but `Cancel`, so whoever reads it may do it; one that is alone is it."""
    awaited = []
    submit = InFlight.submit

    def watched(in_flight, index, order, **how):
        awaited.append((index, how["awaited"]))
        return submit(in_flight, index, order, **how)

    monkeypatch.setattr(InFlight, "submit", watched)
    two = fleets(2)
    assert two.answers(1, 2, 3, 4, 5) == [3, 6, 9, 12, 15]
    last = {max(chosen) for _, chosen, _ in two.staged}
    assert len(last) == 2
    assert {index for index, alone in awaited if alone} == last
    assert two.answers(6) == [18]
    assert awaited[-1] == (0, True)


def test_devices_work_at_the_same_time(fleets):
    """What ends on one device is yielded while the other still runs."""
    two = fleets(2)
    gate = two.hold(0)
    runs = two.begin([1, 2, 3], costs=[100, 10, 10])
    assert [next(runs).device, next(runs).device] == ["null:1", "null:1"]
    gate.set()
    assert [end.device for end in runs] == ["null"]


def test_what_can_be_done_meanwhile_is_done_while_they_work(fleets):
    """And not before they have something to do."""
    bench = fleets(2)
    gates = [bench.hold(0), bench.hold(1)]
    seen = []

    def meanwhile():
        both = lambda: all(one.device.counts.running == 1 for one in bench.benches)  # noqa: E731
        seen.append(comes_true(both))
        for gate in gates:
            gate.set()

    assert len(list(bench.begin([1, 2], meanwhile=meanwhile))) == 2
    assert seen == [True]


def test_the_next_run_is_submitted_before_the_last_one_is_handed_out(fleets, monkeypatch):
    """So the device is not idle while outputs are split; nothing is handed out twice."""
    submitted, submit = [], InFlight.submit

    def watched(in_flight, index, order, **how):
        submitted.append(index)
        return submit(in_flight, index, order, **how)

    monkeypatch.setattr(InFlight, "submit", watched)
    one = fleets(1)
    with contextlib.closing(one.fleet.place({0: 1.0, 1: 1.0}, solo=True)) as solo:
        (part,) = solo.parts
        session = part.device.session
        session.reserve(256)
        solo.submit(part, [order(session, value) for value in (1, 2)])
        assert submitted == [0]
        ended = []
        while not ended:
            ended = solo.collect()
        assert (submitted, [end.index for end in ended]) == ([0, 1], [0])
        ended = []
        while solo.running:
            ended += solo.collect()
        assert [end.index for end in ended] == [1]


def test_runs_that_nobody_wants_are_not_begun(fleets):
    """What has begun ends as ever; what waits is cancelled, on every device and at most once."""
    two = fleets(2)
    gates = [two.hold(0), two.hold(1)]
    lanes = sum(bench.device.lanes for bench in two.benches)
    values = list(range(1, 3 * lanes))
    asked = Counter()

    def unwanted(index):
        asked[index] += 1
        if asked[index] == 3:
            for gate in gates:
                gate.set()
        return index >= lanes

    ends = {end.index: end.outcome for end in two.begin(values, unwanted=unwanted)}
    errors = {index: end.error for index, end in ends.items() if end.error is not None}
    assert set(errors) <= set(range(lanes, len(values)))
    assert errors
    assert all(isinstance(error, Cancelled) for error in errors.values())
    assert len(ends) == len(values)


def test_thousands_of_runs_that_nobody_wants(fleets):
    """More than the socket takes questions: those that find no room are asked the next time."""
    one = fleets(1)
    gate = one.hold(0)

    def stage(session, chosen, *, again):
        session.reserve(256)
        return [order(session, 1)] * len(chosen)

    runs = runs_of(one.fleet, [1.0] * 3000, stage, lambda index: True)
    cancelled = [next(runs) for _ in range(2998)]
    gate.set()
    assert {type(end.outcome.error) for end in cancelled} == {Cancelled}
    assert [end.outcome.error for end in runs] == [None, None]
    assert one.benches[0].device.counts.runs == 2


def test_it_is_asked_while_other_runs_end(fleets, monkeypatch):
    """A batch of many short runs is long too."""
    one = fleets(1)
    monkeypatch.setattr("ge_backend.serving.fleet.attempt.LOOK_EVERY_NS", 0)
    one.benches[0].device.inject(Fault(on="run", do="sleep", ms=1))
    asked = set()
    assert len(list(one.begin(range(40), unwanted=asked.add))) == 40
    assert asked


def test_what_is_to_be_repeated_and_not_wanted_is_not_even_sent(fleets, tmp_path):
    """After a loss runs go one by one: the first has begun, the others are dropped meanwhile."""
    one = fleets(1)
    (bench,) = one.benches
    held = tmp_path / "held"
    bench.device.inject(Fault(on="run", do="hold", file=str(held)))
    bench.cut()
    runs = one.begin([1, 2, 3], unwanted=lambda index: bench.restarts > 0 and index > 0)
    assert [next(runs).index, next(runs).index] == [1, 2]
    assert comes_true(held.exists)
    held.unlink()
    assert sums([end.outcome for end in runs]) == [3]


def test_more_runs_than_the_sockets_take(fleets):
    """Thousands on each device are all answered."""
    two = fleets(2)
    staged = {}

    def stage(session, chosen, *, again):
        session.reserve(256)
        staged[session] = order(session, 1)
        return [staged[session]] * len(chosen)

    ended = list(runs_of(two.fleet, [1.0] * 4000, stage))
    assert sorted(end.index for end in ended) == list(range(4000))
    assert all(bench.device.counts.runs == 2000 for bench in two.benches)


def test_who_stops_early_leaves_nothing_in_flight(fleets):
    """Runs on every device are waited for, because they write into the arenas."""
    two = fleets(2)
    for bench in two.benches:
        bench.device.inject(Fault(on="run", do="sleep", ms=5))
    runs = two.begin(range(20))
    next(runs)
    runs.close()
    assert [bench.device.counts.running for bench in two.benches] == [0, 0]
    assert two.answers(1, 2, 3, 4) == [3, 6, 9, 12]


def test_a_device_without_memory_for_its_arena_fails_its_own_runs(fleets):
    """The others' are made."""
    two = fleets(2)
    poor = two.fleet.sessions[1]
    whole = poor.reserve

    def reserve(nbytes, *, keep=False):
        raise OutOfMemory("no arena today")

    poor.reserve = reserve
    outcomes, _ = two.run([1, 2, 3, 4])
    assert sorted(map(str, sums(outcomes))) == ["3.0", "9.0", "OutOfMemory", "OutOfMemory"]
    poor.reserve = whole
    assert two.answers(1, 2) == [3, 6]


TOO_MANY = tuple(DeviceRows(key=1, first=at, count=1, length=1) for at in range(5_000))


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"starting": (1,) * 100_000}, ProtocolError),
        (
            {
                "gathered": (
                    GatherInput(name="x", dtype="FP32", shape=(1, 1), fill=0, rows=TOO_MANY),
                )
            },
            TensorsLost,
        ),
    ],
)
def test_a_run_that_does_not_fit_into_a_message_fails_alone(fleets, changes, kind):
    """Others of its batch are made, and the executor is kept, with all that lies there.

    It would not fit the next time either; what lies on the device may go through the host instead.
    """
    one = fleets(1)

    def stage(session, chosen, *, again):
        assert not again
        session.reserve(128 * len(chosen))
        orders = [order(session, 1 + index) for index in chosen]
        orders[1] = replace(orders[1], **changes)
        return orders

    ended = list(runs_of(one.fleet, [1000.0] * 3, stage, lambda _: False, (), lambda: None))
    outcomes = {end.index: end.outcome for end in ended}
    assert type(outcomes[1].error) is kind
    assert "at most 163840 fit" in str(outcomes[1].error)
    assert sums([outcomes[0], outcomes[2]]) == [3, 9]
    assert one.benches[0].restarts == 0


def test_a_state_that_is_gone_is_not_taken_up_on_another_device(fleets):
    """A step of a sequence that was in flight is told to begin again; others are repeated."""
    two = fleets(2)
    two.hold(0)
    (bench, _) = two.benches

    def cut():
        assert comes_true(lambda: bench.device.counts.running == 1)
        bench.cut()

    cutting = threading.Thread(target=cut)
    cutting.start()
    (ended,) = two.begin([1], slots=(0, 1), starting=(1,), rows=2)
    cutting.join()
    assert isinstance(ended.outcome.error, ExecutorLost)
    assert "begin the sequence again" in str(ended.outcome.error)


def test_sequences_that_only_begin_are_repeated(fleets):
    """Nothing is gone that their first steps would go on from."""
    one = fleets(1)
    one.benches[0].cut()
    outcomes, _ = one.run([1], slots=(0, 1), starting=(0, 1), rows=2)
    assert sums(outcomes) == [3]


def test_what_earlier_steps_had_left_is_not_looked_for_on_another_device(fleets):
    """The run fails and says so; whoever knows the steps begins again."""
    two = fleets(2)
    rows = (DeviceRows(key=1, first=0, count=1, length=1),)
    gathered = (GatherInput(name="x", dtype="FP32", shape=(1, 1), fill=0, rows=rows),)
    for bench in two.benches:
        bench.cut()
    (outcome, *_), _ = two.run([1, 2], gathered=gathered)
    assert isinstance(outcome.error, TensorsLost)
    assert "what the steps before had left on the device" in str(outcome.error)


def test_outputs_of_a_first_round_survive_the_repetition(fleets):
    """What has ended stays as it was while lost runs are staged again in the same arena."""
    two = fleets(2)
    gate = two.hold(0)
    runs = two.begin([1, 2, 3, 4])
    ended = [next(runs), next(runs)]
    two.benches[0].cut()
    ended += list(runs)
    gate.set()
    assert {end.device for end in ended} == {"null:1"}
    found = {end.index: float(np.asarray(end.outcome.outputs["y"])[0]) for end in ended}
    assert found == {0: 3, 1: 6, 2: 9, 3: 12}


class Clock:
    """An attempt's clock."""

    def __init__(self):
        self.ahead_ns = self.reads = 0

    def monotonic_ns(self):
        self.reads += 1
        return time.monotonic_ns() + self.ahead_ns

    def set_ahead(self):
        self.ahead_ns = AHEAD_NS


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(attempt, "time", clock)
    return clock


def test_deadlines_are_kept_while_an_executor_shows_no_life(fleets, monkeypatch, clock):
    """Runs whose time is over fail at once; a late answer is nobody's, and hurts no later run."""
    one = fleets(1)
    gate = one.hold(0, clock.set_ahead)
    monkeypatch.setattr(InFlight, "silent_ns", SILENT_NS)
    runs = one.begin([1, 2], deadline_ns=time.monotonic_ns() + TIME_NS)
    ended = [next(runs), next(runs)]
    assert {end.index for end in ended} == {0, 1}
    assert all(end.given_up and isinstance(end.outcome.error, DeadlineExceeded) for end in ended)
    gate.set()
    assert list(runs) == []
    monkeypatch.undo()
    assert one.answers(4, 5) == [12, 15]


def test_a_step_that_was_given_up_may_have_moved_its_state_on(fleets, monkeypatch, clock):
    """So its sequence is given up: a client that sent it again would have it counted twice."""
    one = fleets(1)
    gate = one.hold(0, clock.set_ahead)
    monkeypatch.setattr(InFlight, "silent_ns", SILENT_NS)
    soon_ns = time.monotonic_ns() + TIME_NS
    runs = one.begin([1], deadline_ns=soon_ns, slots=(0,), starting=(0,))
    ended = next(runs)
    gate.set()
    assert list(runs) == []
    assert isinstance(ended.outcome.error, StateLost)
    assert "may yet change the state of its sequence" in str(ended.outcome.error)


def test_runs_that_were_given_up_are_not_repeated(fleets, monkeypatch, clock):
    """When the silent executor dies, its other runs are; each ends once."""
    one = fleets(1)
    one.hold(0, clock.set_ahead)
    monkeypatch.setattr(InFlight, "silent_ns", SILENT_NS)
    soon_ns = time.monotonic_ns() + TIME_NS

    def stage(session, chosen, *, again):
        session.reserve(256, keep=again)
        times = {0: soon_ns, 1: 0}
        return [replace(order(session, 1 + i), deadline_ns=times[i]) for i in chosen]

    runs = runs_of(one.fleet, [1000.0, 1000.0], stage)
    first = next(runs)
    assert (first.index, first.given_up) == (0, True)
    one.benches[0].device.faults.strike = lambda *_: None
    one.benches[0].cut()
    (second,) = runs
    assert (second.index, sums([second.outcome])) == (1, [6])


def test_an_executor_that_lives_keeps_deadlines_itself(fleets, monkeypatch, clock):
    """A run that has begun ends when it ends, however late; one beat may be missed meanwhile."""
    assert SILENT_NS > 2 * PERIOD_S * 1e9
    monkeypatch.setattr(attempt, "SILENT_NS", 60 * SILENT_NS)
    one = fleets(1)
    soon_ns = time.monotonic_ns() + TIME_NS

    def last(*_):
        clock.set_ahead()
        late = clock.reads
        assert comes_true(lambda: clock.reads > late + 10)

    one.benches[0].device.faults.strike = last
    (outcome,), _ = one.run([1], deadline_ns=soon_ns)
    assert sums([outcome]) == [3]
