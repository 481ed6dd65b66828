"""Several devices under one batch: spread by cost, none waited for in vain, the lost ones replaced."""

import threading
import time

import pytest

from builders.null_models import comes_true, sums, write_null
from ge_backend.device.health import Health
from ge_backend.errors import (
    DeadlineExceeded,
    DeviceUnavailable,
    ExecutorLost,
    GraphFailed,
    ModelError,
    ProtocolError,
    Status,
    Unsupported,
)


def test_one_device_runs_everything_in_order(fleets):
    """There is nothing to choose, and everything is staged once."""
    one = fleets(1)
    outcomes, devices = one.run([1, 2, 3])
    assert (sums(outcomes), set(devices)) == ([3, 6, 9], {"null"})
    assert one.staged == [(one.fleet.sessions[0], (0, 1, 2), False)]


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


def test_what_other_stubs_have_sent_counts(fleets):
    """A device with much outstanding gets nothing, as long as another is done sooner."""
    two = fleets(2)
    busy = two.benches[0].executors[0].outstanding
    busy.change(10**9)
    assert two.run([1, 2, 3, 4])[1] == ["null:1"] * 4
    assert [state.outstanding_ns for state in two.fleet.states()] == [10**9, 0]
    busy.change(-(10**9))
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
