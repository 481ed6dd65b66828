"""The timeline keeps the last runs of an executor and gives them, in pages, to whoever asks."""

import pytest

from builders.null_models import connected_to, write_null
from fakes.null_device import NullDevice
from fakes.null_faults import Fault
from ge_backend.executor.protocol import wire
from ge_backend.executor.protocol.arena import Arena
from ge_backend.executor.protocol.messages import (
    Attach,
    Done,
    Failed,
    History,
    HistoryRequest,
    Load,
    Loaded,
    Ok,
    Prepare,
    Prepared,
    PrepareInput,
    Run,
    TensorRef,
)
from ge_backend.executor.server.queue import Grant
from ge_backend.executor.server.timeline import RUNS_PER_MESSAGE, RunLabel, Timeline

X = TensorRef(name="x", dtype="FP32", shape=(2, 2), offset=0, nbytes=16)
Y = TensorRef(name="y", dtype="FP32", shape=(2,), offset=64, nbytes=8)


def filled(count, kept_runs):
    timeline = Timeline(kept_runs)
    for number in range(1, count + 1):
        timeline.add(RunLabel("m"), Grant(came_ns=number), number)
    return timeline


def numbers(history):
    return [run.number for run in history.runs]


def test_it_gives_what_ended_after_the_one_that_is_named():
    """The oldest first; asking after the newest gives nothing."""
    timeline = filled(5, 10)
    assert numbers(timeline.history(7, 3)) == [4, 5]
    assert timeline.history(7, 5) == History(id=7, runs=(), missed=0, last=5)


def test_it_forgets_the_oldest_and_says_how_many():
    """Whoever looks too seldom learns what is missing, and whoever looks again misses nothing."""
    timeline = filled(25, 10)
    history = timeline.history(1, 4)
    assert numbers(history) == list(range(16, 26))
    assert history.missed == 11
    assert timeline.history(1, 15).missed == 0
    assert timeline.history(1, 0).missed == 15


def test_a_long_history_comes_in_pages_each_of_which_fits_into_a_message():
    """However long names are; the pages together are the whole, once."""
    long = RunLabel("\u6a21" * 170, (2**31,) * 8, 2**31)
    timeline = Timeline(4 * RUNS_PER_MESSAGE)
    for _ in range(4 * RUNS_PER_MESSAGE):
        timeline.add(long, Grant(came_ns=2**60, held_up_ns=2**60), 2**60)
    seen = []
    while not seen or seen[-1] < timeline.history(1, 0).last:
        page = timeline.history(1, seen[-1] if seen else 0)
        assert wire.decode(wire.encode(page)) == page
        seen += numbers(page)
    assert seen == list(range(1, 4 * RUNS_PER_MESSAGE + 1))


def test_nothing_kept_is_an_empty_history():
    """An executor that has run nothing yet answers all the same."""
    assert Timeline().history(3, 0) == History(id=3, runs=(), missed=0, last=0)


def test_it_names_the_lane_that_ran():
    """Whichever thread it was that did the lane's work."""
    timeline = Timeline()
    timeline.add(RunLabel("m"), Grant(came_ns=1, lane="lane-7"), 2)
    assert timeline.history(1, 0).runs[0].lane == "lane-7"


@pytest.fixture
def device():
    return NullDevice()


@pytest.fixture
def connection(device):
    executor, connection = connected_to(device)
    yield connection
    connection.close()
    executor.join()
    executor.close()


def test_an_executor_tells_what_it_ran(tmp_path, connection, device):
    """Each run with its model, bucket, rows, lane and times; failures too, preparations too."""
    arena = Arena(4096)
    connection.ask(Attach(id=1, arena=0, nbytes=4096), Ok, (arena.descriptor,))
    load = Load(id=2, source=write_null(tmp_path / "model.null"), served_as="fused/encoder")
    graph = connection.ask(load, Loaded).graph
    given = (PrepareInput(name="x", dtype="FP32", shape=(2, 2), fill=1.0),)
    connection.ask(Prepare(id=3, graph=graph, inputs=given, repeats=1), Prepared)
    run = Run(id=4, graph=graph, arena=0, inputs=(X,), outputs=(Y,), bucket=(2, 2), real_rows=1)
    done = connection.ask(run, Done)
    device.inject(Fault(on="run", do="fail", nth=1))
    connection.ask(Run(id=5, graph=graph, arena=0, inputs=(X,), outputs=(Y,)), Failed)
    prepared, ran, failed = connection.ask(HistoryRequest(id=6, after=0), History).runs
    assert (prepared.model, prepared.bucket, prepared.error) == ("fused/encoder", (), "")
    assert (ran.model, ran.bucket, ran.real_rows, ran.error) == ("fused/encoder", (2, 2), 1, "")
    assert ran.lane.startswith("lane-")
    assert ran.came_ns <= ran.started_ns <= ran.ended_ns
    assert ran.ended_ns - ran.started_ns >= done.run_ns
    assert failed.error == "GraphFailed"
    assert connection.ask(HistoryRequest(id=7, after=2), History).runs == (failed,)
    arena.close()


def test_a_graph_that_nobody_named_goes_by_its_file(tmp_path, connection):
    """Sessions outside a server, as the planner's, have no model's name."""
    source = write_null(tmp_path / "model.null")
    graph = connection.ask(Load(id=1, source=source), Loaded).graph
    given = (PrepareInput(name="x", dtype="FP32", shape=(2, 2), fill=1.0),)
    connection.ask(Prepare(id=2, graph=graph, inputs=given, repeats=0), Prepared)
    (prepared,) = connection.ask(HistoryRequest(id=3, after=0), History).runs
    assert "model.null" in prepared.model
