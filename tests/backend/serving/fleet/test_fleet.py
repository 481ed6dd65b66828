"""Several devices under one batch: spread by cost, none waited for in vain, the lost ones replaced."""

import threading
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from builders.bench import Bench
from builders.null_models import SHORT, comes_true, order, sums, write_null
from fakes.null_faults import Fault
from ge_backend.device.health import Health
from ge_backend.errors import (
    Cancelled,
    DeadlineExceeded,
    DeviceUnavailable,
    ExecutorLost,
    GraphFailed,
    ModelError,
    OutOfMemory,
    ProtocolError,
    StateLost,
    Status,
    TensorsLost,
    Unsupported,
)
from ge_backend.executor.client.in_flight import InFlight
from ge_backend.executor.protocol.messages import DeviceRows, GatherInput
from ge_backend.executor.server.heartbeat import PERIOD_S
from ge_backend.serving.fleet import fleet as fleet_module
from ge_backend.serving.fleet.fleet import SILENT_NS, Fleet

# What a run has; once it has begun, the fleet's clock is set ahead, and it is late.
TIME_NS, AHEAD_NS = 60_000_000_000, 61_000_000_000


class Fleets:
    """A fleet over executors in this process, and what to run on it."""

    def __init__(self, folder, count, **model):
        source = write_null(folder / "model.null", **model)
        self.benches = [Bench(source, index) for index in range(count)]
        names = [bench.device.name for bench in self.benches]
        sessions = [bench.session() for bench in self.benches]
        self.fleet = Fleet(dict(zip(names, sessions, strict=True)), SHORT)
        for session in sessions:
            session.fleet = self.fleet
        self.staged, self.gates = [], []

    def hold(self, place, begun=lambda: None):
        """Let no run on this device end until the event is set; each says when it has begun."""
        gate = threading.Event()
        self.gates.append(gate)
        self.benches[place].device.faults.strike = lambda *_: (begun(), gate.wait(20))
        return gate

    def begin(
        self,
        values,
        costs=None,
        *,
        unwanted=lambda _: False,
        deadlines=(),
        meanwhile=lambda: None,
        **changes,
    ):
        """Begin to run one order per value; it yields what has ended."""

        def stage(session, chosen, *, again):
            self.staged.append((session, tuple(chosen), again))
            session.reserve(128 * len(chosen), keep=again)
            return [replace(order(session, values[index]), **changes) for index in chosen]

        costs = costs or [1000.0] * len(values)
        return self.fleet.run(costs, stage, unwanted, deadlines, meanwhile)

    def run(self, values, costs=None, **changes):
        """Return the outcomes in the order of the values, and the device of each."""
        ended = sorted(self.begin(values, costs, **changes), key=lambda end: end.index)
        assert [end.index for end in ended] == list(range(len(values)))
        return [end.outcome for end in ended], [end.device for end in ended]

    def answers(self, *values):
        return sums(self.run(values)[0])

    def up(self):
        return [state.up for state in self.fleet.states()]

    def close(self):
        for gate in self.gates:
            gate.set()
        for bench in self.benches:
            bench.close()


@pytest.fixture
def fleets(tmp_path):
    made = []

    def make(count, **model):
        made.append(Fleets(tmp_path, count, **model))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_one_device_runs_everything_in_order(fleets):
    """There is nothing to choose, and everything is staged once."""
    one = fleets(1)
    outcomes, devices = one.run([1, 2, 3])
    assert (sums(outcomes), set(devices)) == ([3, 6, 9], {"null"})
    assert one.staged == [(one.fleet.sessions[0], (0, 1, 2), False)]


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


def test_a_batch_is_spread_by_cost(fleets):
    """Every run is made once, on the device that it was assigned to, in the order of the plan."""
    two = fleets(2)
    outcomes, devices = two.run([1, 2, 3, 4], costs=[10, 20, 90, 30])
    assert sums(outcomes) == [3, 6, 9, 12]
    assert devices == ["null:1", "null:1", "null", "null:1"]
    assert [(chosen, again) for _, chosen, again in two.staged] == [
        ((0, 1, 3), False),
        ((2,), False),
    ]
    assert [bench.device.counts.runs for bench in two.benches] == [1, 3]


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


def test_what_other_stubs_have_sent_counts(fleets):
    """A device with much outstanding gets nothing, as long as another is done sooner."""
    two = fleets(2)
    outstanding_work = two.benches[0].executors[0].outstanding.add(10**9)
    assert two.run([1, 2, 3, 4])[1] == ["null:1"] * 4
    assert [state.outstanding_ns for state in two.fleet.states()] == [10**9, 0]
    outstanding_work.release()
    assert set(two.run([1, 2, 3, 4])[1]) == {"null", "null:1"}


def test_single_runs_take_turns_by_cost(fleets):
    """A stream of unequal single requests loads idle devices evenly."""
    two = fleets(2)
    costs = [40, 10, 20, 20, 50, 10] * 5
    spent = {"null": 0, "null:1": 0}
    for cost in costs:
        (device,) = two.run([1], [cost])[1]
        spent[device] += cost
    assert abs(spent["null"] - spent["null:1"]) <= max(costs)


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

    runs = one.fleet.run([1.0] * 3000, stage, lambda index: True)
    cancelled = [next(runs) for _ in range(2998)]
    gate.set()
    assert {type(end.outcome.error) for end in cancelled} == {Cancelled}
    assert [end.outcome.error for end in runs] == [None, None]
    assert one.benches[0].device.counts.runs == 2


def test_it_is_asked_while_other_runs_end(fleets, monkeypatch):
    """A batch of many short runs is long too."""
    one = fleets(1)
    monkeypatch.setattr("ge_backend.serving.fleet.fleet.LOOK_EVERY_NS", 0)
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

    ended = list(two.fleet.run([1.0] * 4000, stage))
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

    ended = list(one.fleet.run([1000.0] * 3, stage, lambda _: False, (), lambda: None))
    outcomes = {end.index: end.outcome for end in ended}
    assert type(outcomes[1].error) is kind
    assert "at most 163840 fit" in str(outcomes[1].error)
    assert sums([outcomes[0], outcomes[2]]) == [3, 9]
    assert one.benches[0].restarts == 0


# What is lost


def test_runs_of_a_lost_executor_move_to_the_other_device(fleets):
    """Each alone, and nothing fails; the device is reopened meanwhile and takes part again."""
    two = fleets(2)
    gate = two.hold(0)
    runs = two.begin([1, 2, 3, 4])
    first = next(runs)
    two.benches[0].cut()
    ended = [first, *runs]
    gate.set()
    assert {end.device for end in ended} == {"null:1"}
    assert sums([end.outcome for end in sorted(ended, key=lambda e: e.index)]) == [3, 6, 9, 12]
    assert two.benches[0].restarts == 1
    assert comes_true(lambda: all(two.up()))
    assert set(two.run([1, 2, 3, 4])[1]) == {"null", "null:1"}


def test_a_device_that_stays_away_is_done_without(fleets, caplog):
    """No request notices; states and log say it; it comes back by itself."""
    two = fleets(2)
    two.benches[1].cut()
    two.benches[1].refuse = DeviceUnavailable("no card today")
    for _ in range(3):
        outcomes, devices = two.run([1, 2, 3, 4])
        assert (sums(outcomes), set(devices)) == ([3, 6, 9, 12], {"null"})
    assert comes_true(lambda: "no card today" in caplog.text)
    assert two.up() == [True, False]
    assert two.fleet.ready
    two.benches[1].refuse = None
    assert comes_true(lambda: all(two.up()))
    assert "device null:1 is back" in caplog.text
    assert set(two.run([1, 2, 3, 4])[1]) == {"null", "null:1"}


def test_a_model_is_ready_while_one_of_its_devices_is_well(fleets):
    """A device whose driver says that it is abnormal may still answer, and is not counted on."""
    two = fleets(2)
    two.benches[0].executors[0].outstanding.show_health(Health(abnormal=1))
    assert two.fleet.ready
    assert [state.health.abnormal for state in two.fleet.states()] == [1, -1]
    two.benches[1].executors[0].outstanding.show_health(Health(abnormal=1))
    assert not two.fleet.ready
    two.benches[0].executors[0].outstanding.show_health(Health(abnormal=0))
    assert two.fleet.ready


def test_a_device_that_was_away_has_nothing_to_make_up_for(fleets):
    """It takes turns again, and does not get everything that the others had meanwhile."""
    two = fleets(2)
    two.benches[1].cut()
    two.benches[1].refuse = DeviceUnavailable("no card today")
    for _ in range(6):
        two.run([1])
    two.benches[1].refuse = None
    assert comes_true(lambda: all(two.up()))
    assert sorted(two.run([1])[1][0] for _ in range(4)) == ["null", "null", "null:1", "null:1"]


def test_when_all_devices_are_lost_requests_are_told_so(fleets):
    """UNAVAILABLE, with every reason; and they come back one by one."""
    two = fleets(2)
    for bench in two.benches:
        bench.cut()
        bench.refuse = DeviceUnavailable(f"no {bench.device.name} today")
    for _ in range(2):
        outcomes, _ = two.run([1, 2])
        assert {outcome.error.status for outcome in outcomes} == {Status.UNAVAILABLE}
        assert "null:1: no null:1 today" in str(outcomes[0].error)
    assert not two.fleet.ready
    two.benches[0].refuse = None
    assert comes_true(lambda: two.fleet.ready)
    assert two.answers(5) == [15]


def test_an_executor_that_cannot_be_started_again_fails_the_runs(fleets, caplog):
    """With one device its own error comes; it is tried in the background, not by each batch."""
    one = fleets(1)
    (bench,) = one.benches
    bench.cut()
    bench.refuse = DeviceUnavailable("no device today")
    for _ in range(3):
        outcomes, devices = one.run([1, 2])
        assert [str(outcome.error) for outcome in outcomes] == ["no device today"] * 2
        assert devices == ["", ""]
    assert bench.restarts == 1
    assert caplog.text.count("the executor of null is gone") == 1
    bench.refuse = None
    assert comes_true(lambda: one.fleet.ready)
    assert one.answers(1, 2) == [3, 6]


@pytest.mark.parametrize("kind", [GraphFailed, ModelError, ProtocolError, Unsupported])
def test_a_device_that_is_tried_again_is_unavailable_whatever_keeps_it_away(fleets, kind):
    """As with several devices: an executor without descriptors, say, may have some later."""
    one = fleets(1)
    one.benches[0].cut()
    one.benches[0].refuse = kind("OSError: [Errno 24] Too many open files")
    (outcome,) = one.run([1])[0]
    assert outcome.error.status is Status.UNAVAILABLE
    assert str(outcome.error).endswith("loaded again: OSError: [Errno 24] Too many open files")


def test_the_only_device_is_waited_for_while_it_restarts(fleets):
    """A batch that finds its executor dead takes longer, and succeeds."""
    one = fleets(1)
    (bench,) = one.benches
    real = bench.connect
    one.fleet.sessions[0]._connect = lambda: (time.sleep(0.2), real())[1]
    bench.cut()
    assert one.answers(1, 2, 3) == [3, 6, 9]
    assert (bench.restarts, len(bench.connections)) == (1, 2)


def test_an_executor_that_dies_again_and_again_is_given_up_for_now(fleets):
    """A run is not repeated for ever when executors die before it begins."""
    one = fleets(1)
    one.benches[0].cut()
    one.benches[0].refuse = ExecutorLost("gone again")
    (outcome,) = one.run([1])[0]
    assert isinstance(outcome.error, ExecutorLost)
    assert str(outcome.error) == "gone again"


def test_a_run_under_which_devices_are_lost_before_it_begins_ends_some_time(fleets, monkeypatch):
    """Every repetition finds the connection cut; after some of them it is told."""
    one = fleets(1)
    session = one.fleet.sessions[0]
    in_flight = session.in_flight

    def cut_in_flight():
        one.benches[0].cut()
        return in_flight()

    monkeypatch.setattr(session, "in_flight", cut_in_flight)
    (outcome,) = one.run([1])[0]
    assert isinstance(outcome.error, ExecutorLost)
    assert "before it could be repeated" in str(outcome.error)


def test_a_model_replaced_by_another_kind_is_not_run(fleets, tmp_path):
    """After a restart a file with other tensors is refused: the stub's layout would not fit it."""
    one = fleets(1)
    write_null(
        tmp_path / "model.null",
        inputs=[{"name": "z", "dtype": "FP32", "dims": ["batch", "length"]}],
        outputs=[{"name": "y", "dtype": "FP32", "dims": ["batch"]}],
    )
    one.benches[0].cut()
    (outcome,) = one.run([1])[0]
    assert isinstance(outcome.error, DeviceUnavailable)
    assert outcome.error.status is Status.UNAVAILABLE  # our trouble, not the client's
    assert "load the model again" in str(outcome.error)
    write_null(tmp_path / "model.null")
    assert comes_true(lambda: one.fleet.ready)
    assert one.answers(1) == [3]


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


def test_an_executor_that_has_died_between_batches_is_given_up_before_the_next(fleets):
    """So that what the next batch begins is not taken for something that is lost."""
    two = fleets(2)
    two.fleet.look_for_losses()
    assert two.up() == [True, True]
    two.benches[0].cut()
    assert two.benches[0].restarts == 0
    two.fleet.look_for_losses()
    assert (two.benches[0].restarts, two.benches[1].restarts) == (1, 0)
    assert two.answers(1, 2) == [3, 6]


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


def test_tensors_stay_only_where_there_is_one_device(fleets):
    """Of several, a later run may come to another one. Host memory keeps nothing."""
    assert fleets(2).fleet.retain_tensors("owner") is None
    one = fleets(1).fleet
    memory = one.retain_tensors("owner")
    assert memory is not None
    assert memory.name == ""
    one.free_tensors([1, 2])


def test_a_device_that_is_being_reopened_can_be_left(fleets):
    """The model is unloaded meanwhile: the attempt ends, and nothing stays open."""
    two = fleets(2)
    two.benches[1].cut()
    two.benches[1].refuse = DeviceUnavailable("no card today")
    two.run([1, 2])
    assert comes_true(lambda: two.up() == [True, False])
    two.fleet.close()
    assert comes_true(lambda: all(s.arena.descriptor < 0 for s in two.fleet.sessions))
    assert comes_true(lambda: not [t for t in threading.enumerate() if t.name.startswith("reopen")])


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


def test_deadlines_are_kept_while_there_is_no_executor(fleets):
    """Who has no time left is told so at once; who has waits for the executor to come back."""
    one = fleets(1)
    gate, reconnect = threading.Event(), one.benches[0].connect

    def connect():
        gate.wait(20)
        return reconnect()

    one.fleet.sessions[0]._connect = connect
    one.benches[0].cut()
    soon_ns = time.monotonic_ns() + 500_000_000
    runs = one.begin([1, 2, 3], deadlines=[soon_ns, 0, soon_ns + 60_000_000_000])
    first = next(runs)
    assert first.index == 0
    assert isinstance(first.outcome.error, DeadlineExceeded)
    assert first.given_up  # so it is answered at once, however short the rest of the batch
    assert 0 < time.monotonic_ns() - soon_ns < 10_000_000_000
    gate.set()
    left = sorted(runs, key=lambda end: end.index)
    assert [end.index for end in left] == [1, 2]
    assert sums([end.outcome for end in left]) == [6, 9]


class Clock:
    """The fleet's clock."""

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
    monkeypatch.setattr(fleet_module, "time", clock)
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

    runs = one.fleet.run([1000.0, 1000.0], stage)
    first = next(runs)
    assert (first.index, first.given_up) == (0, True)
    one.benches[0].device.faults.strike = lambda *_: None
    one.benches[0].cut()
    (second,) = runs
    assert (second.index, sums([second.outcome])) == (1, [6])


def test_an_executor_that_lives_keeps_deadlines_itself(fleets, monkeypatch, clock):
    """A run that has begun ends when it ends, however late; one beat may be missed meanwhile."""
    assert SILENT_NS > 2 * PERIOD_S * 1e9
    monkeypatch.setattr(fleet_module, "SILENT_NS", 60 * SILENT_NS)
    one = fleets(1)
    soon_ns = time.monotonic_ns() + TIME_NS

    def last(*_):
        clock.set_ahead()
        late = clock.reads
        assert comes_true(lambda: clock.reads > late + 10)

    one.benches[0].device.faults.strike = last
    (outcome,), _ = one.run([1], deadline_ns=soon_ns)
    assert sums([outcome]) == [3]
