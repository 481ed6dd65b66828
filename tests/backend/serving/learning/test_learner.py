"""Buckets that change while a model serves: no request is lost, and what fails changes nothing."""

import itertools
import socket
import threading
import time

import numpy as np
import pytest

from builders.learning import BUCKETS, ONE_AXIS, Bench
from builders.null_models import comes_true
from fakes.null_device import Fault, NullDevice
from ge_backend.errors import DeviceUnavailable, ExecutorLost, InvalidRequest, ShapeTooLarge
from ge_backend.executor.client.executor_connection import ExecutorConnection
from ge_backend.executor.process.inline import connect_inline
from ge_backend.executor.server.executor import Executor
from ge_backend.model.config.sequence_batching import SequenceBatching, State
from ge_backend.serving.learning import learner
from ge_backend.serving.learning.learner import Learner
from ge_backend.serving.warmup.measure import cost_key, measured_costs
from ge_backend.tensors import DATA_TYPES

TWO_AXES = {
    "inputs": [{"name": "x", "dtype": "FP32", "dims": ["batch", "length", "width"]}],
    "outputs": [{"name": "y", "dtype": "FP32", "dims": ["batch"], "compute": "sum", "of": "x"}],
}
WITH_STATE = {
    **ONE_AXIS,
    "inputs": [*ONE_AXIS["inputs"], {"name": "h", "dtype": "FP32", "dims": ["batch"]}],
    "outputs": [*ONE_AXIS["outputs"], {"name": "n", "dtype": "FP32", "dims": ["batch"]}],
}
STATE = State(input="h", output="n", dtype=DATA_TYPES["FP32"], dims=(), initial_dims=())
SEQUENCES = SequenceBatching(strategy="oldest", capacity=2, idle_s=9, controls=(), states=(STATE,))


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setattr(learner, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(learner, "RELEARN_FIRST_S", 0.0)
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def test_corrected_costs_are_kept_for_the_next_start(bench):
    """What serving has found out is written under the model's key, beside other buckets' costs."""
    one = bench.instance()
    key = cost_key(one.model)
    bench.store.keep_costs(key, {(1, 1): 7.0, (1, 8): 1.0})
    before = one.pipeline.costs.lasting()
    kept = Learner(one.model, one.pipeline, before, one.open_fleet)
    for _ in range(200):
        one.pipeline.costs.observe((1, 8), 2 * before[1, 8])
        one.pipeline.costs.observe((4, 32), before[4, 32])
    kept.close()
    costs = bench.store.costs(key)
    assert costs[1, 1] == 7.0
    assert costs[1, 8] / costs[4, 32] == pytest.approx(2 * before[1, 8] / before[4, 32], rel=0.1)


def measured_in(instance, seconds=30.0):
    """Return the seconds that measuring in the background took; None if it goes on for too long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (took := instance.recorder.drain().get(("ge_warmup_seconds", ()))) is not None:
            return took
        time.sleep(0.01)
    return None


def test_a_model_that_serves_already_is_measured(bench):
    """Batches go by estimates first and by what was measured then; it is kept for the next start."""
    slow = {f"{rows}x{size}": 20.0 for rows, size in BUCKETS}
    instance = bench.instance(static=False, early=True, cost_ms=slow)
    assert instance.ask(8, 32) == [8.0, 32.0]
    took = measured_in(instance)
    assert took > len(BUCKETS) * 0.02
    instance.ask()
    costs = instance.pipeline.costs.table
    assert min(costs[bucket] for bucket in BUCKETS) > 20e6
    assert sum(costs[bucket] for bucket in BUCKETS) < took * 1e9
    again = bench.instance(static=False, early=True, cost_ms=slow)
    assert again.pipeline.costs.table == costs


def test_a_model_that_is_unloaded_while_it_is_measured_goes_at_once(bench, monkeypatch):
    """The bucket that is measured is the last one, and answers come until then."""
    monkeypatch.setattr(learner, "CLOSE_WITHIN_S", 30.0)
    held = bench.hold("prepare", nth=2)  # the first is what the estimates are of
    instance = bench.instance(static=False, early=True)
    assert comes_true(held.exists)
    assert instance.ask(8) == [8.0]
    closing = threading.Thread(target=instance.learner.close)
    closing.start()
    assert comes_true(instance.learner._stop.is_set)
    held.unlink()
    closing.join(20)
    assert not closing.is_alive()
    assert bench.device.counts.prepares == 2


def failing(error, times):
    """Return a stand-in for measuring that fails so often first, and how often it was asked."""
    calls = []

    def measured(*args, **named):
        calls.append(1)
        if len(calls) <= times:
            raise error
        return measured_costs(*args, **named)

    return measured, calls


@pytest.mark.parametrize(
    "error",
    [
        DeviceUnavailable("no more of it"),
        FileNotFoundError(2, "no more of it"),
        RuntimeError("no more of it"),
    ],
)
def test_what_could_not_be_measured_is_measured_later(bench, caplog, monkeypatch, error):
    """After a pause, each longer than the one before: meanwhile answers go by estimates."""
    measured, calls = failing(error, times=2)
    monkeypatch.setattr(learner, "measured_costs", measured)
    monkeypatch.setattr(learner, "MEASURE_AGAIN_S", (0.01, 0.2))
    instance = bench.instance(static=False, early=True)
    assert comes_true(lambda: len(calls) >= 2)
    assert instance.ask(8, 50) == [8.0, 50.0]
    assert measured_in(instance) is not None
    assert len(calls) == 3
    (told,) = [message for message in caplog.messages if "no more of it" in message]
    assert told.startswith("costs are not measured: ")
    assert "buckets stay as they are" not in caplog.text
    instance.ask()
    left = bench.executors[0]
    assert comes_true(lambda: left.num_connections == 1), "what failed has left a session behind"


def test_what_was_added_before_costs_are_measured_is_measured_with_them(bench, monkeypatch):
    """The buckets of now, not those that the model began with."""
    added = threading.Event()

    def measured(*args, **named):
        if not added.is_set():
            raise DeviceUnavailable("not now")
        return measured_costs(*args, **named)

    monkeypatch.setattr(learner, "measured_costs", measured)
    monkeypatch.setattr(learner, "MEASURE_AGAIN_S", itertools.repeat(0.01))
    one = bench.instance(static=False, early=True, overflow="extend")
    one.ask(50)
    assert one.swapped()
    added.set()
    assert measured_in(one) is not None
    assert one.buckets == {*BUCKETS, (1, 64)}


def test_measuring_is_given_up_after_some_failures(bench, monkeypatch):
    """And at once where an executor was lost over it: that one serves other models too."""
    for error, most in ((DeviceUnavailable("none"), 3), (ExecutorLost("killed twice"), 1)):
        measured, calls = failing(error, times=99)
        monkeypatch.setattr(learner, "measured_costs", measured)
        monkeypatch.setattr(learner, "MEASURE_AGAIN_S", (0.0, 0.0))
        one = bench.instance(static=False, early=True)
        assert comes_true(lambda calls=calls, most=most: len(calls) == most)
        assert one.ask(8) == [8.0]
        time.sleep(0.2)
        assert len(calls) == most
        one.learner.close()
        assert bench.store.traffic("m")["length"].total == (1 if most == 3 else 2)


def test_shapes_outlive_a_change_of_the_buckets(bench):
    """The engine has seen them: with new ones at each change there would be more than it bears."""
    one = bench.instance(static=False, overflow="extend", learn="off")
    one.ask(7)
    shapes = one.pipeline.costs.model.shapes
    one.ask(50)
    assert one.swapped()
    one.ask(9)
    assert one.pipeline.costs.model.shapes is shapes
    assert len(shapes) == 3


def lengths(seed, count):
    """Return lengths that fit badly into buckets of 8 and 32."""
    return np.random.default_rng(seed).choice(
        [3, 10, 11, 12, 32], count, p=[0.2, 0.3, 0.3, 0.1, 0.1]
    )


def test_a_refused_size_is_accepted_after_an_extension(bench):
    """A static engine cannot run it at first; soon it has a bucket with every row count."""
    one = bench.instance(overflow="extend")
    refused, answer = one.ask(50, 5)
    assert isinstance(refused, ShapeTooLarge)
    assert answer == 5
    assert one.swapped()
    assert one.buckets == {*BUCKETS, (1, 64), (4, 64)}
    assert one.ask(50, 64, 5) == [50, 64, 5]
    assert one.swaps == 1


def test_an_extension_ends_at_the_graphs_limit(bench):
    """The last bucket is the limit; what is longer is refused before it could ask for another."""
    one = bench.instance(overflow="extend")
    one.ask(99)
    assert one.swapped()
    assert max(one.buckets) == (4, 100)
    for size in (101, 102, 150):
        with pytest.raises(InvalidRequest, match="the model takes at most 100"):
            one.ask(size)
    assert not one.swapped(2, seconds=0.15)
    assert max(one.buckets) == (4, 100)


def test_where_any_shape_runs_an_extension_measures_what_is_quick(bench):
    """The request ran at once, and its neighbours need only points to interpolate between."""
    one = bench.instance(overflow="extend", static=False)
    assert one.ask(50) == [50]
    assert one.swapped()
    assert one.buckets == {*BUCKETS, (1, 64)}


def test_without_extend_nothing_is_added(bench):
    """Misses are taken and forgotten."""
    one = bench.instance()
    assert isinstance(one.ask(50)[0], ShapeTooLarge)
    assert not one.swapped(seconds=0.15)
    assert one.buckets == set(BUCKETS)


def test_a_file_that_was_compiled_for_its_shapes_is_left_alone(bench, caplog):
    """It has no other buckets: neither misses nor traffic change them."""
    fixed = {**ONE_AXIS, "fixed_shapes": [{"x": list(bucket)} for bucket in BUCKETS]}
    one = bench.instance(graph=fixed, overflow="extend", learn="serve")
    for batch in np.split(lengths(2, 400), 100):
        one.ask(*batch)
    assert isinstance(one.ask(50)[0], ShapeTooLarge)
    assert not one.swapped(seconds=0.15)
    assert "buckets stay as they are" not in caplog.text


def test_a_model_with_states_keeps_its_buckets(bench):
    """Another fleet would not have the states of the sequences that live."""
    one = bench.instance(overflow="extend", sequence=SEQUENCES, graph=WITH_STATE)
    assert one.pipeline.layout.states
    assert isinstance(one.ask(50)[0], ShapeTooLarge)
    assert not one.swapped(seconds=0.15)
    assert one.buckets == set(BUCKETS)


def test_several_axes_extend_together(bench):
    """The bucket covers the request on all of them."""
    buckets = [(rows, a, b) for rows in (1, 4) for a in (8, 16) for b in (4, 8)]
    one = bench.instance(buckets, graph=TWO_AXES, overflow="extend")
    assert isinstance(one.ask((20, 3))[0], ShapeTooLarge)
    assert one.swapped()
    assert one.ask((20, 3), (32, 4), (16, 8)) == [60, 128, 128]
    assert isinstance(one.ask((20, 5))[0], ShapeTooLarge)
    assert one.swapped(2)
    assert one.ask((20, 5)) == [100]


def test_learned_boundaries_follow_the_traffic(bench):
    """Once there is enough of it; the largest size and the row counts stay."""
    # Costs are elements: what is measured on a busy machine may say that nothing would be saved.
    one = bench.instance(learn="serve", warmup=False)
    for batch in np.split(lengths(1, 160), 40):
        assert one.ask(*batch) == list(batch)
    assert not one.swapped(seconds=0.15), "160 rows are too few to learn from"
    for batch in np.split(lengths(2, 400), 100):
        assert one.ask(*batch) == list(batch)
    assert one.swapped()
    assert one.buckets == {(rows, size) for rows in (1, 4) for size in (12, 32)}
    assert one.ask(12, 32, 1) == [12, 32, 1]


def test_where_any_shape_runs_the_measured_points_follow_the_traffic(bench):
    """Whatever they cost, since rows are not padded to them."""
    one = bench.instance(learn="serve", static=False, cost_ms={})
    for batch in np.split(lengths(2, 400), 100):
        assert one.ask(*batch) == list(batch)
    assert one.swapped()
    assert one.buckets == {(rows, size) for rows in (1, 4) for size in (12, 32)}


def test_traffic_that_fits_never_swaps(bench):
    """Nothing would be saved."""
    one = bench.instance(learn="serve")
    for _ in range(100):
        one.ask(8, 8, 32, 32)
    assert not one.swapped(seconds=0.2)


@pytest.mark.parametrize("learn", ["off", "record"])
def test_boundaries_stay_where_learning_is_not_asked_for(bench, learn):
    """Whatever the traffic."""
    one = bench.instance(learn=learn)
    for batch in np.split(lengths(1, 400), 100):
        one.ask(*batch)
    assert not one.swapped(seconds=0.15)


def test_no_request_is_lost_while_grids_change(bench):
    """Batches in flight end in the grid they began with; later ones use the new one."""
    one = bench.instance(overflow="extend", learn="serve", warmup=False)
    longest, end = 32, time.monotonic() + 60
    for seed in itertools.count():
        assert time.monotonic() < end
        batch = [int(size) for size in lengths(seed, 4)]
        if seed == 150:
            one.ask(60)
            longest = 60
        assert one.ask(*batch) == batch
        if one.swapped(2, seconds=0.0):
            break
    assert one.swaps >= 2
    assert one.ask(longest) == [longest]


def test_an_executor_that_dies_prepares_the_new_buckets_again(bench):
    """The session that serves is the one that prepared them."""
    one = bench.instance(overflow="extend")
    one.ask(50)
    assert one.swapped()
    assert one.ask(50) == [50]
    bench.restart_executor()
    assert one.ask(50, 8) == [50, 8]


def test_an_executor_that_dies_before_the_change_prepares_them_too(bench):
    """Between two batches anything may happen."""
    one = bench.instance(overflow="extend")
    one.ask(50)
    assert one.swapped()
    bench.restart_executor()
    assert one.ask(50, 8) == [50, 8]


def test_an_executor_that_dies_during_preparation_is_found_again(bench):
    """Over its own session, while the other one serves."""
    one = bench.instance(overflow="extend")
    held = bench.hold("prepare")
    one.ask(50)
    assert comes_true(held.exists)
    bench.restart_executor()
    held.unlink()
    assert one.ask(8) == [8]
    assert one.swapped()
    assert one.ask(50, 8) == [50, 8]


def test_an_executor_inside_the_process_gets_the_new_buckets(bench):
    """Each session has an executor of its own there."""
    one = bench.instance(overflow="extend", connects=[lambda: connect_inline("null")])
    one.ask(50)
    assert one.swapped()
    assert one.ask(50, 8) == [50, 8]


def test_new_buckets_are_prepared_on_every_device(bench):
    """Each could be given a run in them from the next batch on."""
    other = Executor(NullDevice(index=1), linger_s=0.0)
    bench.executors.insert(0, other)

    def connect_other():
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        other.accept(theirs)
        return ExecutorConnection(ours)

    one = bench.instance(overflow="extend", connects=[bench.connect, connect_other])
    prepared = other.device.counts.prepares
    assert prepared == len(BUCKETS)
    one.ask(50)
    assert one.swapped()
    assert other.device.counts.prepares > prepared
    for _ in range(4):
        assert one.ask(50, 60, 8) == [50, 60, 8]
    assert all(executor.device.counts.runs > prepared for executor in (other, bench.executors[-1]))


def test_a_preparation_that_fails_leaves_the_grid_and_is_not_repeated(bench, caplog):
    """However often such requests come: one that kills executors would do so each time."""
    one = bench.instance(overflow="extend")
    bench.device.inject(Fault(on="prepare", do="fail"))
    before = bench.device.counts.prepares
    assert isinstance(one.ask(50)[0], ShapeTooLarge)
    assert comes_true(lambda: "the buckets stay as they are" in caplog.text)
    for _ in range(4):
        assert isinstance(one.ask(50)[0], ShapeTooLarge)
        time.sleep(0.05)
    assert caplog.text.count("the buckets stay as they are") == 1
    assert "rows=4 length=64 failed" in caplog.text
    assert bench.device.counts.prepares == before
    assert one.buckets == set(BUCKETS)
    assert one.ask(8) == [8]


def test_a_device_that_is_busy_may_be_asked_again(bench, caplog):
    """It was not the buckets' fault."""
    one = bench.instance(overflow="extend")
    bench.refuse = DeviceUnavailable("not now")
    one.ask(50)
    assert comes_true(lambda: "stay as they are: not now" in caplog.text)
    bench.refuse = None
    one.ask(50)
    assert one.swapped()
    assert one.ask(50) == [50]


@pytest.mark.parametrize(
    "unforeseen", [RuntimeError("can't start new thread"), ZeroDivisionError("by zero")]
)
def test_what_nobody_foresaw_ends_no_learning(bench, caplog, unforeseen):
    """It may be over at the next attempt; the log has the traceback."""
    one = bench.instance(overflow="extend")
    bench.refuse = unforeseen
    one.ask(50)
    assert comes_true(lambda: f"stay as they are: {unforeseen}" in caplog.text)
    assert "Traceback" in caplog.text
    bench.refuse = None
    one.ask(50)
    assert one.swapped()


def test_a_fleet_that_was_opened_in_vain_is_left(bench, monkeypatch):
    """Whatever the reason."""

    def failing(*_):
        raise RuntimeError("can't start new thread")

    one = bench.instance(overflow="extend")
    monkeypatch.setattr(learner, "added_costs", failing)
    one.ask(50)
    assert comes_true(lambda: len(bench.sockets) == 2)
    assert comes_true(lambda: bench.executors[0].num_connections == 1)


def test_a_model_file_that_was_replaced_is_not_mixed_with_the_old_one(bench, caplog):
    """The other session would load the new file."""
    one = bench.instance(overflow="extend")
    text = bench.path.read_text()
    bench.path.write_text(text + " ")
    one.ask(50)
    assert comes_true(lambda: "was replaced since it was loaded" in caplog.text)
    assert one.ask(8) == [8]


def test_prepared_buckets_are_bounded(bench, caplog):
    """Nothing gives them back while the graph is loaded, so `max_graphs` counts all of them."""
    one = bench.instance(overflow="extend", max_graphs=6)
    one.ask(50)
    assert one.swapped()
    one.ask(90)
    assert comes_true(lambda: "at most 6 may be prepared" in caplog.text)
    assert len(one.buckets) == 6


def test_the_bound_grows_with_the_buckets_that_a_model_begins_with(bench, monkeypatch):
    """Some number of them may be prepared also where it begins with few."""
    monkeypatch.setattr(learner, "MIN_GRAPHS", len(BUCKETS) + 1)
    one = bench.instance(overflow="extend")
    one.ask(50)
    assert one.swapped()
    assert len(one.buckets) == len(BUCKETS) + 2


def test_instances_share_the_bound(bench, caplog):
    """Each may add its part, since each learns by itself."""
    one = bench.instance(overflow="extend", max_graphs=6, instances=2)
    one.ask(50)
    assert comes_true(lambda: "at most 5 may be prepared" in caplog.text)


def test_two_instances_learn_at_once(bench):
    """Over one executor; each has its own grid, and what one prepared the other finds."""
    pair = [bench.instance(overflow="extend", learn="serve") for _ in range(2)]
    failures = []

    def drive(one, seed):
        for batch in np.split(lengths(seed, 400), 100):
            if one.ask(*batch) != list(batch):
                failures.append(batch)
        one.ask(60)

    threads = [threading.Thread(target=drive, args=(one, n)) for n, one in enumerate(pair)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for one in pair:
        assert one.swapped(2)
        assert one.ask(60, 12, 3) == [60, 12, 3]
        assert {(4, 12), (4, 64)} <= one.buckets
    assert bench.device.counts.loads == 1


def test_traffic_is_kept_and_merged_between_instances(bench):
    """At the end at the latest; one file per model."""
    pair = [bench.instance() for _ in range(2)]
    pair[0].ask(5, 5)
    pair[1].ask(5, 30)
    for one in pair:
        one.learner.close()
    kept = bench.store.traffic("m")
    assert kept["rows"].points() == [(2, 2)]
    assert kept["length"].points() == [(5, 3), (30, 1)]


def test_traffic_is_kept_while_serving(bench, monkeypatch):
    """A stub that is killed loses a few seconds of it."""
    monkeypatch.setattr(learner, "KEEP_EVERY_S", 0.05)
    bench.instance().ask(5, 5)
    assert comes_true(lambda: "length" in bench.store.traffic("m"))


def test_traffic_is_not_kept_where_learning_is_off(bench):
    """No file is written."""
    one = bench.instance(learn="off")
    one.ask(5)
    one.learner.close()
    assert bench.store.traffic("m") == {}


def test_closing_does_not_wait_for_buckets_in_preparation(bench, monkeypatch):
    """Unloading is quick, keeps the last traffic, and leaves no session behind."""
    monkeypatch.setattr(learner, "CLOSE_WITHIN_S", 0.1)
    one = bench.instance(overflow="extend")
    held = bench.hold("prepare")
    one.ask(50, 5)
    assert comes_true(held.exists)
    one.learner.close()
    assert held.exists()
    held.unlink()
    assert bench.store.traffic("m")["length"].points() == [(5, 1), (50, 1)]
    assert comes_true(lambda: bench.executors[0].num_connections == 1)
    assert one.buckets == set(BUCKETS)


def test_closing_an_idle_learner_is_immediate(bench, monkeypatch):
    """It does not sleep until its next look."""
    monkeypatch.setattr(learner, "LOOK_EVERY_S", 60.0)
    one = bench.instance()
    started = time.monotonic()
    one.learner.close()
    assert time.monotonic() - started < 10
