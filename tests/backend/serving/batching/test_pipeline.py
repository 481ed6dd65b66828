"""A batch's way through an executor on the null device: every request gets one reply, its own."""

import functools
import json
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from builders.fake_fleet import FakeFleet
from builders.null_models import SHORT
from ge_backend.device.base import ROW_ERRORS, GraphSource
from ge_backend.device.health import Health
from ge_backend.errors import (
    DeadlineExceeded,
    ExecutorLost,
    GraphFailed,
    InvalidRequest,
    OutOfMemory,
    ShapeTooLarge,
)
from ge_backend.executor.client.in_flight import RunResult
from ge_backend.executor.client.session import Session
from ge_backend.executor.process.inline import connect_inline
from ge_backend.executor.protocol.messages import Done, TensorRef
from ge_backend.executor.protocol.outstanding import PoolSample
from ge_backend.metrics import Recorder
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.layout.layout import InputLayout, Layout, OutputLayout, build_layout
from ge_backend.serving.batching.pipeline import Pipeline
from ge_backend.serving.batching.plan import Policy
from ge_backend.serving.batching.request import check_request, stacked
from ge_backend.serving.fleet.fleet import Fleet
from ge_backend.serving.warmup.warmup import RUN_OVERHEAD_NS
from ge_backend.shapes.buckets.corrected import CorrectedCosts
from ge_backend.shapes.buckets.costs import DynamicCosts, StaticCosts
from ge_backend.shapes.traffic.traffic import REQUEST_ROWS, Traffic
from ge_backend.tensors import DATA_TYPES

POISON = 666
TABLE = {(1, 8): 10.0, (4, 8): 12.0, (1, 32): 40.0, (4, 32): 90.0}
ECHO = {
    "inputs": [
        {"name": "ids", "dtype": "INT64", "dims": ["batch", "length"]},
        {"name": "attention_mask", "dtype": "INT64", "dims": ["batch", "length"]},
    ],
    "outputs": [
        {
            "name": "echo",
            "dtype": "INT64",
            "dims": ["batch", "length"],
            "compute": "echo",
            "of": "ids",
        },
        {
            "name": "length",
            "dtype": "INT64",
            "dims": ["batch"],
            "compute": "sum",
            "of": "attention_mask",
        },
    ],
}


@pytest.fixture
def staged(monkeypatch):
    """All runs go by the arena and as messages, as where the executor is another process."""
    monkeypatch.setattr("ge_backend.executor.client.session.Session.runs_here", False)


@pytest.fixture(params=["direct", "staged"])
def open_pipeline(request, open_any_pipeline):
    """As `open_any_pipeline`, for either way of a run."""
    if request.param == "staged":
        request.getfixturevalue("staged")
    return open_any_pipeline


@pytest.fixture
def open_staged_pipeline(staged, open_any_pipeline):
    """As `open_any_pipeline`, where runs are staged."""
    return open_any_pipeline


@pytest.fixture
def open_any_pipeline(tmp_path):
    """Returns a function from a null graph to a pipeline over an inline executor."""
    fleets = []

    def build(*, costs=None, policy=None, arena_bytes=1, **graph):
        path = tmp_path / "model.null"
        path.write_text(json.dumps({**ECHO, **graph}))
        session = Session(
            functools.partial(connect_inline, "null"),
            GraphSource.of(path),
            arena_bytes=arena_bytes,
            on_restart=lambda: None,
        )
        fleets.append(Fleet({"null": session}, SHORT))
        layout = build_layout(CONFIG, session.signature, session.shape_policy)
        return Pipeline(
            layout=layout,
            fleet=fleets[-1],
            costs=costs or DynamicCosts(TABLE, 4),
            policy=policy or Policy(axes=layout.axes),
            recorder=Recorder(),
            traffic=Traffic(layout.axes),
        )

    yield build
    for fleet in fleets:
        fleet.close()


CONFIG = ModelConfig.read(
    {
        "name": "m",
        "max_batch_size": 4,
        "input": [
            {"name": "ids", "data_type": "TYPE_INT64", "dims": [-1], "allow_ragged_batch": True}
        ],
    },
    directory=None,
    version="1",
    environment={},
)


def requests_of(layout, *tensors, deadlines=None):
    return [
        check_request(
            i,
            {"ids": np.array(rows, np.int64)},
            layout,
            deadline_ns=0 if deadlines is None else deadlines[i],
        )
        for i, rows in enumerate(tensors)
    ]


def replies_of(pipeline, requests):
    """Run a batch and return the reply per request; each must have exactly one."""
    replies = list(pipeline.run(requests))
    assert sorted(reply.request for reply in replies) == list(range(len(requests)))
    return {reply.request: reply for reply in replies}


@pytest.fixture(params=["each", "stacked"])
def answers(request):
    """Returns `replies_of`, or the same of a batch whose requests that are alike come as one."""
    return replies_of if request.param == "each" else replies_of_stacks


def replies_of_stacks(pipeline, requests):
    assert pipeline.stacks
    replies = {}
    for reply in pipeline.run(stacked(requests)):
        several = len(reply.members) > 1
        for row, member in enumerate(reply.members):
            own = slice(row, row + 1) if several else slice(None)
            outputs = {name: array[own] for name, array in reply.outputs.items()}
            assert member.index not in replies
            replies[member.index] = replace(reply, request=member.index, outputs=outputs)
    assert sorted(replies) == list(range(len(requests)))
    return replies


def counted(recorder):
    return {
        (name, *dict(labels).values()): value for (name, labels), value in recorder.drain().items()
    }


def assert_echoed(reply, rows):
    assert reply.error is None
    assert reply.outputs["echo"].tolist() == rows
    assert reply.outputs["length"].tolist() == [len(row) for row in rows]


def test_every_request_gets_its_own_rows_back(open_pipeline, answers):
    """Requests of different lengths and client batches share runs and are told apart again."""
    pipeline = open_pipeline()
    batch = [[[1, 2]], [[3, 4, 5], [6, 7, 8]], [[9]], [[10, 11]], *([[n] * 3] for n in range(9))]
    replies = answers(pipeline, requests_of(pipeline.layout, *batch))
    for position, rows in enumerate(batch):
        assert_echoed(replies[position], rows)


def test_a_client_batch_larger_than_a_run_is_put_together_again(open_pipeline):
    """Its rows run in several sub-batches and come back in order."""
    pipeline = open_pipeline()
    rows = [[n, n] for n in range(11)]
    assert_echoed(replies_of(pipeline, requests_of(pipeline.layout, rows))[0], rows)


def test_static_shapes_run_in_prepared_buckets_only(open_pipeline):
    """The graph would refuse any other shape; what it returns is cut back."""
    pipeline = open_pipeline(static_shapes=True, costs=StaticCosts(TABLE))
    for bucket in TABLE:
        pipeline.fleet.sessions[0].prepare(prepare_inputs(bucket), 1)
    batch = [[[1, 2]], [[3] * 20], [[4] * 8], [[5]]]
    replies = replies_of(pipeline, requests_of(pipeline.layout, *batch))
    for position, rows in enumerate(batch):
        assert_echoed(replies[position], rows)
    names = {key for key in counted(pipeline.recorder) if key[0] == "ge_sub_batches_total"}
    assert names == {("ge_sub_batches_total", "4x8"), ("ge_sub_batches_total", "1x32")}


def prepare_inputs(bucket):
    from ge_backend.executor.protocol.messages import PrepareInput

    return tuple(
        PrepareInput(name=spec["name"], dtype="INT64", shape=bucket, fill=1.0)
        for spec in ECHO["inputs"]
    )


def test_outputs_are_cut_to_lengths_that_the_graph_tells(open_pipeline):
    """Rows of one request that ran in sub-batches of different lengths come back as one tensor."""
    ids, length = ECHO["outputs"]
    told = {**ids, "dims": ["batch", "places"], "fill": -1}
    pipeline = open_pipeline(outputs=[told, length], lengths={"places": "length"})
    batch = [[[7, 7, 0]], [[n] * 5 for n in range(9)]]
    replies = replies_of(pipeline, requests_of(pipeline.layout, *batch))
    for position, rows in enumerate(batch):
        assert_echoed(replies[position], rows)


@pytest.mark.parametrize(("most", "inside"), [(64, [False, True, False, True]), (63, [False] * 4)])
def test_outputs_of_unknown_shapes_find_room_in_the_arena_from_the_second_run_on(
    open_staged_pipeline, monkeypatch, most, inside
):
    """As much as a run lacked before, if that is not too much; right wherever they are."""
    monkeypatch.setattr("ge_backend.serving.batching.pipeline.MAX_SPILL_BYTES", most)
    ids, length = ECHO["outputs"]
    told = {**ids, "dims": ["batch", "places"]}
    pipeline = open_staged_pipeline(
        outputs=[told, length], lengths={"places": "length"}, arena_bytes=4096
    )
    arena = pipeline.fleet.sessions[0].arena
    whole = TensorRef(name="", dtype="UINT8", shape=(4096,), offset=0, nbytes=4096)
    found = []
    for row in ([1] * 8, [2] * 3, [3] * 9, [4] * 8):  # eight numbers take 64 bytes
        (reply,) = replies_of(pipeline, requests_of(pipeline.layout, [row])).values()
        assert_echoed(reply, [row])
        found.append(np.shares_memory(reply.outputs["echo"], arena.view(whole)))
    assert found == inside


def test_one_bad_request_fails_alone(open_pipeline, answers):
    """The run that held it is repeated for each of its requests, and only its own fails."""
    pipeline = open_pipeline(faults=[{"on": "run", "do": "fail", "value": POISON}])
    batch = [[[1, 2]], [[POISON, 2]], [[3, 4], [5, 6]]]
    replies = answers(pipeline, requests_of(pipeline.layout, *batch))
    assert isinstance(replies[1].error, GraphFailed)
    assert replies[1].outputs == {}
    assert_echoed(replies[0], batch[0])
    assert_echoed(replies[2], batch[2])


@pytest.mark.parametrize("arena_bytes", [1, 1 << 22])
def test_replies_stay_valid_while_suspects_run_again(open_pipeline, arena_bytes):
    """Outputs of the first round are views of an arena that the second round must not overwrite."""
    pipeline = open_pipeline(
        arena_bytes=arena_bytes,
        costs=StaticCosts({(2, 8): 10.0, (2, 2000): 50.0}),
        faults=[{"on": "run", "do": "fail", "value": POISON}],
    )
    batch = [[[1]], [[2]], [[POISON] * 2000], [[3] * 2000]]  # the short ones are staged first
    replies = replies_of(pipeline, requests_of(pipeline.layout, *batch))
    assert isinstance(replies[2].error, GraphFailed)
    for position in (0, 1, 3):
        assert_echoed(replies[position], batch[position])


def test_a_bad_part_of_a_large_request_fails_it_once(open_pipeline):
    """A request in several runs gets one error, whatever becomes of its other parts."""
    pipeline = open_pipeline(
        costs=StaticCosts({(2, 8): 10.0}), faults=[{"on": "run", "do": "fail", "value": POISON}]
    )
    batch = [[[1], [POISON], [2], [3], [POISON]], [[4]]]
    replies = replies_of(pipeline, requests_of(pipeline.layout, *batch))
    assert isinstance(replies[0].error, GraphFailed)
    assert_echoed(replies[1], batch[1])
    # Three runs, and one more for the neighbour of the bad row: the rest of its request is given up.
    assert counted(pipeline.recorder)["ge_sub_batches_total", "2x8"] == 4


@pytest.mark.parametrize(
    ("nth", "told"), [(0, InvalidRequest), (2, GraphFailed)], ids=["its sizes", "its rows"]
)
def test_one_row_tells_whether_a_graph_refuses_sizes_or_rows(open_pipeline, nth, told):
    """More rows than have run before, of a size that the graph does not take, are the client's fault."""
    fault = {"on": "run", "do": "fail", "says": "Guard failed: ids.size()[1] <= 16", "nth": nth}
    pipeline = open_pipeline(faults=[{**fault, "value": POISON}])
    batch = [[[1, 2]]]
    assert_echoed(replies_of(pipeline, requests_of(pipeline.layout, *batch))[0], batch[0])
    if nth:  # the second such run is that of the request, and one row of it runs
        replies_of(pipeline, requests_of(pipeline.layout, [[POISON]]))
    replies = replies_of(pipeline, requests_of(pipeline.layout, [[POISON] * 40, [4] * 40]))
    assert type(replies[0].error) is told
    assert "Guard failed" in str(replies[0].error)


class ShorterAlone(DynamicCosts):
    """Costs of runs that take less where they have the whole device."""

    def expected(self, cost_ns, *, alone):
        return cost_ns * (0.4 if alone else 1.0)


@pytest.mark.parametrize(
    ("times", "costs", "lanes", "here", "together"),
    [
        (1, DynamicCosts, 1, 2, 0),
        (1e9, DynamicCosts, 1, 0, 0),
        (1, DynamicCosts, 2, 0, 1),
        (1, ShorterAlone, 2, 2, 0),
        (1e9, ShorterAlone, 2, 0, 0),
    ],
)
def test_several_short_runs_are_made_side_by_side_or_in_this_thread(
    open_any_pipeline, monkeypatch, times, costs, lanes, here, together
):
    """Whichever ends sooner; where they are long, clients may give up meanwhile."""
    made = {name: [] for name in ("run_here", "run_side_by_side")}

    def noting(name, method):
        return lambda *given: made[name].append(given) or method(*given)

    for name in made:
        monkeypatch.setattr(Session, name, noting(name, getattr(Session, name)))
    pipeline = open_any_pipeline(
        costs=costs({bucket: cost * times for bucket, cost in TABLE.items()}, 4),
        policy=Policy(axes=("length",), lanes=lanes, in_turn=True),
    )
    batch = [[[1]], [[2] * 32]]
    replies = replies_of(pipeline, requests_of(pipeline.layout, *batch))
    for at, rows in enumerate(batch):
        assert_echoed(replies[at], rows)
    assert {name: len(calls) for name, calls in made.items()} == {
        "run_here": here,
        "run_side_by_side": together,
    }


def test_when_every_run_fails_every_request_gets_the_error(open_pipeline):
    """Nobody waits for a reply that never comes."""
    pipeline = open_pipeline(faults=[{"on": "run", "do": "fail"}])
    replies = replies_of(pipeline, requests_of(pipeline.layout, [[1]], [[2, 3]], [[4], [5]]))
    assert {type(reply.error) for reply in replies.values()} == {GraphFailed}


def test_a_full_device_is_not_tried_again(open_pipeline):
    """A request that lacked memory alone is told so at once; what comes later finds some."""
    pipeline = open_pipeline(faults=[{"on": "run", "do": "out_of_memory", "nth": 1}])
    replies = replies_of(pipeline, requests_of(pipeline.layout, [[1], [2]]))
    assert {type(reply.error) for reply in replies.values()} == {OutOfMemory}
    assert_echoed(replies_of(pipeline, requests_of(pipeline.layout, [[1], [2]]))[0], [[1], [2]])


def test_a_request_that_fills_the_device_fails_alone(open_pipeline, answers):
    """Its neighbours need less without it."""
    pipeline = open_pipeline(faults=[{"on": "run", "do": "out_of_memory", "value": POISON}])
    replies = answers(pipeline, requests_of(pipeline.layout, [[1]], [[2]], [[POISON]], [[4]]))
    assert isinstance(replies.pop(2).error, OutOfMemory)
    for reply, rows in zip(replies.values(), ([[1]], [[2]], [[4]]), strict=False):
        assert_echoed(reply, rows)


def test_a_request_that_no_memory_is_enough_for_fails_alone(open_pipeline):
    """However little it sends: its output is the square of that."""
    square = {"name": "square", "dtype": "FP32", "dims": ["batch", "length", "length"]}
    pipeline = open_pipeline(outputs=[*ECHO["outputs"], square])
    replies = replies_of(pipeline, requests_of(pipeline.layout, [[1, 2]], [[3] * 400_000], [[4]]))
    assert isinstance(replies[1].error, OutOfMemory)
    assert [replies[index].error for index in (0, 2)] == [None, None]
    assert replies[2].outputs["echo"].tolist() == [[4]]


def test_requests_that_are_too_late_are_told_so(open_pipeline, answers):
    """A deadline that has passed fails the run, unless a neighbour in it has none."""
    pipeline = open_pipeline(costs=DynamicCosts({(1, 8): 1.0}, 1))
    batch = requests_of(pipeline.layout, [[1]], [[2]], deadlines=[1, 0])
    replies = answers(pipeline, batch)
    assert isinstance(replies[0].error, DeadlineExceeded)
    assert_echoed(replies[1], [[2]])


def test_an_oversized_request_is_refused_without_touching_the_others(open_pipeline, answers):
    """Where the policy says so its error comes at once."""
    pipeline = open_pipeline(policy=Policy(axes=("length",), refuse_overflow=True))
    replies = answers(pipeline, requests_of(pipeline.layout, [[0] * 33], [[0] * 33], [[1]]))
    assert isinstance(replies[0].error, ShapeTooLarge)
    assert isinstance(replies[1].error, ShapeTooLarge)
    assert_echoed(replies[2], [[1]])


def test_rows_are_counted_by_their_size(open_pipeline, answers):
    """Two bins per power of two, each named by the largest size in it; rows count, not requests."""
    pipeline = open_pipeline()
    five, six, nine = [[1] * 5] * 2, [[1] * 6], [[1] * 9]
    answers(pipeline, requests_of(pipeline.layout, five, six, six, nine, [[]]))
    counts = counted(pipeline.recorder)
    sizes = {key[2]: count for key, count in counts.items() if key[0] == "ge_row_sizes_total"}
    assert sizes == {"6": 4, "12": 1, "0": 1}
    assert sum(sizes.values()) == counts["ge_rows_total",]
    assert counts["ge_requests_total",] == 5


def test_an_oversized_request_runs_and_is_counted(open_pipeline):
    """Where the engine takes any shape it runs at its own."""
    pipeline = open_pipeline()
    replies = replies_of(pipeline, requests_of(pipeline.layout, [[7] * 33], [[1]]))
    assert_echoed(replies[0], [[7] * 33])
    counts = counted(pipeline.recorder)
    assert counts["ge_unplanned_shapes_total",] == 1
    assert counts["ge_sub_batches_total", "unplanned"] == 1


def test_sizes_without_a_bucket_are_named_once(open_pipeline, caplog, monkeypatch):
    """However often they come; after many different ones they are only counted."""
    monkeypatch.setattr("ge_backend.serving.batching.pipeline.MAX_LOGGED", 2)
    pipeline = open_pipeline()
    for length in (33, 40, 33, 41, 33):
        replies_of(pipeline, requests_of(pipeline.layout, [[7] * length], [[1]]))
    assert [record.message for record in caplog.records] == [
        "no bucket covers length=33: it runs at its own shape",
        "no bucket covers length=40: it runs at its own shape; further sizes are only counted",
    ]
    assert counted(pipeline.recorder)["ge_unplanned_shapes_total",] == 5


def test_a_successor_serves_from_the_next_batch_on(open_pipeline):
    """The batch in flight ends as it began; then the fleet before is closed."""
    pipeline, other = open_pipeline(), open_pipeline(costs=DynamicCosts({(1, 64): 5.0}, 4))
    first = pipeline.fleet
    running = pipeline.run(requests_of(pipeline.layout, [[1, 2]], [[3] * 30]))
    replies = [next(running)]
    pipeline.hand_over(other.fleet, other.costs)
    replies += running
    assert {r.request: r.outputs["echo"].tolist() for r in replies} == {0: [[1, 2]], 1: [[3] * 30]}
    assert pipeline.fleet is first
    replies_of(pipeline, requests_of(pipeline.layout, [[7] * 60]))
    assert (pipeline.fleet, pipeline.costs) == (other.fleet, other.costs)
    assert pipeline.traffic.take_missed() == []
    assert first.sessions[0].arena.descriptor < 0


def test_a_successor_that_never_served_is_closed(open_pipeline):
    """Because a later one took its place, or because the pipeline was closed."""
    pipeline, second, third = open_pipeline(), open_pipeline(), open_pipeline()
    first = pipeline.fleet
    pipeline.hand_over(second.fleet, second.costs)
    pipeline.hand_over(third.fleet, third.costs)
    assert second.fleet.sessions[0].arena.descriptor < 0
    pipeline.close()
    assert third.fleet.sessions[0].arena.descriptor < 0
    assert first.sessions[0].arena.descriptor < 0


class Retaining:
    """A fleet that notes for whom it keeps tensors; `meanwhile` happens as it is first told."""

    def __init__(self, meanwhile=lambda: None):
        self.owners = []
        self.meanwhile = meanwhile

    def retain_tensors(self, owner, buffer_bytes=()):
        self.owners.append(owner)
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()

    def close(self):
        self.owners.append("closed")


def test_whoever_serves_keeps_tensors_for_their_owner(open_pipeline):
    """Also a fleet that was handed over before that was asked for, and one that is meanwhile."""
    pipeline = open_pipeline()
    before, during, after = Retaining(), Retaining(), Retaining()
    pipeline.hand_over(before, pipeline.costs)
    before.meanwhile = lambda: pipeline.hand_over(during, pipeline.costs)
    pipeline.retain_tensors("first")
    assert before.owners == ["first"]
    assert during.owners == ["first"]
    after.meanwhile = lambda: pipeline.retain_tensors("second")
    pipeline.hand_over(after, pipeline.costs)
    assert after.owners == ["first", "second"]
    pipeline.close()
    assert after.owners[-1] == during.owners[-1] == before.owners[-1] == "closed"


def test_the_arena_grows_with_the_batch(open_pipeline):
    """A batch larger than any before finds room, and the next small one too."""
    pipeline = open_pipeline(arena_bytes=1)
    for length in (1, 5000, 1):
        rows = [[length] * length]
        assert_echoed(replies_of(pipeline, requests_of(pipeline.layout, rows))[0], rows)


def test_sizes_of_requests_are_recorded_and_those_without_a_bucket_noted(open_pipeline):
    """Rows per batch and request, a size per row, and what a larger grid would have covered."""
    pipeline = open_pipeline()
    replies_of(pipeline, requests_of(pipeline.layout, [[1], [2]], [[3] * 33]))
    assert pipeline.traffic.take_missed() == [(33,)]
    taken = pipeline.traffic.take()
    assert {name: dict(h.points()) for name, h in taken.items()} == {
        "rows": {3: 1},
        REQUEST_ROWS: {1: 1, 2: 1},
        "length": {1: 2, 33: 1},
    }


def test_an_empty_batch_has_no_replies(open_pipeline):
    """All its requests may have been refused while they were read."""
    assert list(open_pipeline().run([])) == []


def test_padding_is_counted_in_elements(open_pipeline):
    """Real, run, and what padding everything to the longest would have run."""
    pipeline = open_pipeline(static_shapes=True, costs=StaticCosts(TABLE))
    for bucket in TABLE:
        pipeline.fleet.sessions[0].prepare(prepare_inputs(bucket), 1)
    replies_of(pipeline, requests_of(pipeline.layout, [[1] * 5], [[1] * 8, [2] * 8], [[1] * 20]))
    counts = counted(pipeline.recorder)
    assert counts["ge_batches_total",] == 1
    assert counts["ge_requests_total",] == 3
    assert counts["ge_rows_total",] == 4
    assert counts["ge_elements_real_total",] == 5 + 16 + 20
    assert counts["ge_elements_run_total",] == 4 * 8 + 1 * 32
    assert counts["ge_elements_longest_total",] == 4 * 20
    for stage in ("plan", "stage", "wait", "split"):
        assert counts[f"ge_{stage}_seconds_total",] >= 0
    for stage in ("queue", "run"):
        assert counts[f"ge_{stage}_seconds_total", "null"] >= 0


def echoing(order=None, error=None, refused=None, *, alone=False, lost=0):
    """Return a fleet that echoes, and ends runs in a given order or way."""

    def outcome_of(index, run):
        ids = fleet.arena.view(run.inputs[0])
        outputs = {"ids": ids}
        if refused:
            reasons = [refused.get(int(row[0]), b"") for row in ids]
            outputs[ROW_ERRORS] = np.array(reasons, object)
        if error:
            return RunResult(outputs={}, error=error)
        done = Done(
            id=1,
            settled=tuple(outputs),
            queue_ns=2_000_000_000,
            run_ns=3_000_000_000,
            held_up_ns=500_000_000 if index else 0,
            alone=alone,
        )
        return RunResult(outputs=outputs, error=None, done=done)

    fleet = FakeFleet(outcome_of, order, lost)
    return fleet


COMMON = {"dtype": DATA_TYPES["INT64"], "dims": (-1,), "axes": (0,), "names": ("length",)}
LAYOUT = Layout(
    batched=True,
    axes=("length",),
    limits={},
    inputs=(InputLayout(name="ids", fill=0.0, made="", **COMMON),),
    outputs=(OutputLayout(name="ids", **COMMON),),
)


def fake_pipeline(fleet, *, lanes=1, costs=None):
    return Pipeline(
        layout=LAYOUT,
        fleet=fleet,
        costs=costs or StaticCosts({(1, 8): 10.0, (1, 32): 40.0}),
        policy=Policy(axes=("length",), lanes=lanes),
        recorder=Recorder(),
        traffic=Traffic(("length",)),
    )


def test_replies_come_as_their_runs_end_and_say_what_is_left():
    """Whoever ends first is answered first; the rest is expected to take what its runs cost."""
    batch = requests_of(LAYOUT, [[1]], [[2]], [[3] * 9])
    pipeline = fake_pipeline(echoing(order=[2, 0, 1]))
    assert [(r.request, r.remaining_ns) for r in pipeline.run(batch)] == [(2, 20), (0, 10), (1, 0)]
    pipeline = fake_pipeline(echoing(), lanes=2)
    assert [r.remaining_ns for r in pipeline.run(batch)] == [25, 20, 0]


def test_a_batch_says_when_it_is_expected_to_end():
    """Its runs' costs over the lanes, from its beginning; nothing is known where nothing was run."""
    batch = requests_of(LAYOUT, [[1]], [[2]], [[3] * 9])
    pipeline = fake_pipeline(echoing(), lanes=2, costs=StaticCosts({(1, 8): 2e12, (1, 32): 6e12}))
    assert pipeline.free_at_ns == 0
    before = time.monotonic_ns()
    list(pipeline.run(batch))
    assert 5e12 <= pipeline.free_at_ns - before < 6e12


def test_a_row_that_the_graph_refuses_fails_its_request_alone(answers):
    """The others have their results from the same run; nothing is run again."""
    fleet = echoing(refused={POISON: b"is poison"})
    pipeline = fake_pipeline(fleet, costs=StaticCosts({(4, 8): 10.0}))
    own = [[POISON], [POISON], [5], [6], [7]]
    batch = [[[1], [2]], [[3], [POISON]], [[4]], own, [[8]], [[POISON]], [[9]]]
    replies = answers(pipeline, requests_of(LAYOUT, *batch))
    assert {at: str(r.error) for at, r in replies.items() if r.error} == {
        1: "row 1: is poison",
        3: "row 0: is poison",
        5: "row 0: is poison",
    }
    assert isinstance(replies[1].error, InvalidRequest)
    well = (0, 2, 4, 6)
    assert [replies[at].outputs["ids"].tolist() for at in well] == [batch[at] for at in well]
    assert fleet.runs == 4  # of four rows at most: nothing is run again


def test_the_executors_times_are_summed():
    """Queue and run times are what the executor measured, in seconds, by device."""
    pipeline = fake_pipeline(echoing())
    list(pipeline.run(requests_of(LAYOUT, [[1]], [[2]])))
    counts = counted(pipeline.recorder)
    assert counts["ge_queue_seconds_total", "null:1"] == 4
    assert counts["ge_run_seconds_total", "null:1"] == 6


@pytest.mark.parametrize("alone", [False, True])
def test_costs_follow_what_runs_take(alone):
    """A run of three seconds in a bucket that should take one: alone or not, it is noticed."""
    costs = CorrectedCosts({(1, 8): 1e9, (1, 32): 4e9}, StaticCosts)
    pipeline = fake_pipeline(echoing(alone=alone), costs=costs)
    for _ in range(20):
        list(pipeline.run(requests_of(LAYOUT, [[1]], [[2]])))
    counts = counted(pipeline.recorder)
    assert 2e9 < costs.expected(costs.cost(1, (8,)), alone=alone) < 4e9
    if not alone:
        assert 1.5e9 < costs.lasting()[1, 8] < 3e9
    planned = counts["ge_planned_seconds_total", "null:1"]
    assert 40 < planned < 130
    off = counts["ge_plan_error_seconds_total", "null:1"]
    assert off == pytest.approx(40 * (3 + RUN_OVERHEAD_NS / 1e9) - planned, abs=6)


def test_a_sub_batch_is_unwanted_once_all_its_requests_are_cancelled():
    """One client that still waits keeps a run going; what was cancelled is told so."""
    gone = set()
    fleet = echoing()
    pipeline = fake_pipeline(fleet, costs=StaticCosts({(2, 8): 10.0}))
    requests = [
        replace(request, cancelled=functools.partial(gone.__contains__, request.index))
        for request in requests_of(LAYOUT, [[1]], [[2]])
    ]

    def unwanted(index):
        list(pipeline.run(requests))
        return index in fleet.cancelled

    assert not unwanted(0)
    gone.add(0)
    assert not unwanted(0)
    gone.add(1)
    assert unwanted(0)
    requests = stacked(requests)
    assert unwanted(0)
    gone.remove(0)
    assert not unwanted(0)


def test_members_of_a_stack_are_answered_as_their_runs_end():
    """Each reply has the rows of those whom it names."""
    pipeline = fake_pipeline(echoing(order=[1, 0]), costs=StaticCosts({(2, 8): 10.0}))
    replies = pipeline.run(stacked(requests_of(LAYOUT, [[1]], [[2]], [[3]], [[4]])))
    found = [([m.index for m in r.members], r.outputs["ids"].tolist()) for r in replies]
    assert found == [([2, 3], [[3], [4]]), ([0, 1], [[1], [2]])]


@pytest.mark.parametrize("lengths", [("",), ("length",)])
def test_what_graphs_cut_row_by_row_is_cut_request_by_request(open_pipeline, lengths):
    """Lengths that the graph tells are each request's own, so those do not come as one."""
    ids, length = ECHO["outputs"]
    told = {**ids, "dims": ["batch", "places"], "fill": -1}
    several = {"places": "length"} if lengths[0] else {}
    outputs = [told if several else ids, length]
    assert open_pipeline(outputs=outputs, lengths=several).stacks == (not several)


def test_what_is_lost_is_tried_again_and_counted_once():
    """Where its executor dies twice under it: one batch of one run, however often it was placed."""
    fleet = echoing(lost=2)
    pipeline = fake_pipeline(fleet)
    ((_, reply),) = replies_of(pipeline, requests_of(LAYOUT, [[1]])).items()
    assert reply.outputs["ids"].tolist() == [[1]]
    assert fleet.solo == [False] * 3
    counts = counted(pipeline.recorder)
    assert counts["ge_batches_total",] == counts["ge_sub_batches_total", "1x8"] == 1


def test_waiting_for_the_workspace_is_counted():
    """Only runs that were held up count, and for so long as they were."""
    pipeline = fake_pipeline(echoing())
    list(pipeline.run(requests_of(LAYOUT, [[1]], [[2] * 5], [[3] * 9])))
    counts = counted(pipeline.recorder)
    assert counts["ge_workspace_waits_total", "null:1"] == 2
    assert counts["ge_workspace_wait_seconds_total", "null:1"] == 1


def test_the_pool_of_a_device_is_sampled(open_pipeline):
    """Where there is one: its size, and what of it is placed, used, and was used at most."""
    pipeline = open_pipeline()
    pool = PoolSample(size_bytes=12, placed_bytes=8, leased_bytes=3, peak_bytes=5, evictions=1)
    state = replace(pipeline.fleet.states()[0], pool=pool)
    pipeline.fleet.states = lambda: [state]
    pipeline.sample_devices()
    counts = counted(pipeline.recorder)
    names = ("pool", "placed", "used", "peak")
    assert [counts[f"ge_workspace_{name}_bytes", "null"] for name in names] == [12, 8, 3, 5]
    assert counts["ge_evicted_graphs", "null"] == 1


def test_the_health_of_a_device_is_sampled(open_pipeline):
    """What it says of itself, and nothing else."""
    pipeline = open_pipeline()
    health = Health(abnormal=1, cube=50, vector=25)
    state = replace(pipeline.fleet.states()[0], health=health)
    pipeline.fleet.states = lambda: [state]
    pipeline.sample_devices()
    counts = counted(pipeline.recorder)
    assert counts["ge_device_abnormal", "null"] == 1
    busy = {key: value for key, value in counts.items() if "utilization" in key[0]}
    assert sorted(busy.values()) == [0.25, 0.5]
    assert {unit for key in busy for unit in key} >= {"cube", "vector"}


def test_devices_are_sampled(open_pipeline):
    """Whether each is up and what it has to do, for whoever publishes metrics."""
    pipeline = open_pipeline()
    pipeline.sample_devices()
    counts = counted(pipeline.recorder)
    assert counts == {
        ("ge_device_up", "null"): 1,
        ("ge_device_outstanding_seconds", "null"): 0,
        ("ge_executor_memory_bytes", "null"): 0,
        ("ge_evicted_graphs", "null"): 0,
    }


@pytest.mark.parametrize(
    ("error", "solo"),
    [(GraphFailed, [False]), (OutOfMemory, [True] * 3), (ExecutorLost, [True] * 3)],
)
def test_runs_that_fail_with_several_requests_are_repeated_for_each_alone(error, solo):
    """Those that may take others with them have nothing beside them; no two share one again."""
    fleet = echoing(error=error("no"))
    pipeline = fake_pipeline(fleet, costs=StaticCosts({(4, 8): 10.0}))
    replies = replies_of(pipeline, requests_of(LAYOUT, [[1]], [[2]], [[3], [4]]))
    assert {type(reply.error) for reply in replies.values()} == {error}
    assert fleet.runs == 1 + 3
    assert fleet.solo == [False, *solo]


def test_executors_that_die_whatever_they_run_are_not_tried_for_each_request():
    """Three requests have shown it; the others are told so, and take no executor more."""
    error = ExecutorLost("gone")
    fleet = echoing(error=error)
    pipeline = fake_pipeline(fleet, costs=StaticCosts({(8, 8): 10.0}))
    replies = replies_of(pipeline, requests_of(LAYOUT, *([[n]] for n in range(6))))
    assert [reply.error is error for _, reply in sorted(replies.items())] == [True] * 3 + [
        False
    ] * 3
    for position in (3, 4, 5):
        told = replies[position].error
        assert isinstance(told, ExecutorLost)
        assert "over 3 others of its batch, each alone, and this one was not tried" in str(told)
    assert fleet.runs == 1 + 3


def test_a_lost_executor_fails_the_batch():
    """Every request is told, once."""
    error = ExecutorLost("gone")
    pipeline = fake_pipeline(echoing(error=error))
    replies = list(pipeline.run(requests_of(LAYOUT, [[1], [2]], [[3] * 9])))
    assert Counter(reply.request for reply in replies) == {0: 1, 1: 1}
    assert all(reply.error is error for reply in replies)


@pytest.fixture
def open_concatenating(tmp_path):
    """A function from costs, and more of the graph, to a pipeline that lays requests end to end."""
    pipelines = []

    def build(costs, **graph):
        path = tmp_path / "model.null"
        flat = {"dtype": "INT64", "dims": [-1]}
        described = {
            "inputs": [
                {"name": "x", **flat},
                {"name": "n", "dtype": "INT32", "dims": [-1]},
                {"name": "sizes", "dtype": "INT32", "dims": ["batch"]},
            ],
            "outputs": [
                {"name": "y", "compute": "echo", "of": "x", **flat},
                {
                    "name": "size",
                    "compute": "echo",
                    "of": "sizes",
                    "dtype": "INT32",
                    "dims": ["batch"],
                },
            ],
        }
        path.write_text(json.dumps(described | graph))
        told = {"data_type": "TYPE_INT32", "source_input": ["x"]}
        config = ModelConfig.read(
            {
                "name": "m",
                "max_batch_size": 8,
                "input": [
                    {
                        "name": "x",
                        "data_type": "TYPE_INT64",
                        "dims": [-1],
                        "allow_ragged_batch": True,
                    }
                ],
                "output": [
                    {"name": "y", "data_type": "TYPE_INT64", "dims": [-1]},
                    {
                        "name": "size",
                        "data_type": "TYPE_INT32",
                        "dims": [1],
                        "reshape": {"shape": []},
                    },
                ],
                "batch_input": [
                    {"kind": "BATCH_ACCUMULATED_ELEMENT_COUNT", "target_name": ["n"], **told},
                    {"kind": "BATCH_ITEM_SHAPE_FLATTEN", "target_name": ["sizes"], **told},
                ],
                "batch_output": [
                    {
                        "kind": "BATCH_SCATTER_WITH_INPUT_SHAPE",
                        "target_name": ["y"],
                        "source_input": ["x"],
                    }
                ],
            },
            directory=None,
            version="1",
            environment={},
        )
        session = Session(
            functools.partial(connect_inline, "null"),
            GraphSource.of(path),
            arena_bytes=1,
            on_restart=lambda: None,
        )
        pipelines.append(
            Pipeline(
                layout=build_layout(config, session.signature),
                fleet=Fleet({"null": session}, SHORT),
                costs=costs,
                policy=Policy(axes=()),
                recorder=Recorder(),
                traffic=Traffic(()),
            )
        )
        return pipelines[-1]

    yield build
    for pipeline in pipelines:
        pipeline.close()


def concatenated(layout, batch):
    return [
        check_request(i, {"x": np.array(rows, np.int64)}, layout) for i, rows in enumerate(batch)
    ]


def test_a_concatenating_model_runs_its_batch_as_it_came(open_concatenating):
    """One run, in the order of arrival, and each request gets its own shape back."""
    pipeline = open_concatenating(DynamicCosts({(1,): 1.0}, 8))
    batch = [[[5, 6, 7]], [[1]], [[2, 3], [4, 4]]]
    replies = replies_of(pipeline, concatenated(pipeline.layout, batch))
    assert [replies[i].outputs["y"].tolist() for i in range(3)] == batch
    assert counted(pipeline.recorder)["ge_sub_batches_total", "1"] == 1


def test_what_runs_alone_of_a_concatenating_model_gets_no_further_rows(open_concatenating):
    """A bucket has some; concatenated, they would have no elements."""
    table = {(1,): 1.0, (4,): 2.0}
    costs = StaticCosts(table, DynamicCosts(table, 8))
    bad = {"on": "run", "do": "fail", "value": POISON}
    pipeline = open_concatenating(costs, faults=[bad])
    batch = [[[5], [6], [7]], [[POISON]], [[2], [4]]]
    replies = replies_of(pipeline, concatenated(pipeline.layout, batch))
    assert isinstance(replies[1].error, GraphFailed)
    assert [replies[i].outputs["y"].tolist() for i in (0, 2)] == [batch[0], batch[2]]
