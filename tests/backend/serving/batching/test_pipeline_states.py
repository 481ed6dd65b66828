"""A batch of steps whose states have moved on: it is not run again."""

from dataclasses import replace

import numpy as np
import pytest

from builders.fake_fleet import FakeFleet
from ge_backend.errors import ExecutorLost, GraphFailed, OutOfMemory, StateLost
from ge_backend.executor.client.in_flight import RunResult
from ge_backend.executor.protocol.messages import Done
from ge_backend.metrics import Recorder
from ge_backend.model.layout.layout import InputLayout, Layout, OutputLayout
from ge_backend.serving.batching.pipeline import Pipeline
from ge_backend.serving.batching.plan import Policy
from ge_backend.serving.batching.request import check_request, stacked
from ge_backend.shapes.buckets.costs import StaticCosts
from ge_backend.shapes.traffic.traffic import Traffic
from ge_backend.tensors import DATA_TYPES

VALUE = {"name": "x", "dtype": DATA_TYPES["FP32"], "dims": (1,), "axes": (-1,), "names": ("",)}
LAYOUT = Layout(
    batched=True,
    axes=(),
    limits={},
    inputs=(InputLayout(fill=0.0, made="", **VALUE),),
    outputs=(OutputLayout(**VALUE),),
)


@pytest.fixture(params=["each", "stacked"])
def replies_to(request):
    """A function that runs a batch of two with this outcome; returns the fleet and the errors.

    Both come as they are, and as one.
    """
    arenas = []

    def run(outcome, slots=(-1, -1)):
        fleet = FakeFleet(lambda *_: outcome)
        arenas.append(fleet.arena)
        pipeline = Pipeline(
            layout=LAYOUT,
            fleet=fleet,
            costs=StaticCosts({(1,): 1.0, (2,): 1.0}),
            policy=Policy(axes=()),
            recorder=Recorder(),
            traffic=Traffic(()),
        )
        batch = [
            replace(check_request(i, {"x": np.ones((1, 1), np.float32)}, LAYOUT), slot=slot)
            for i, slot in enumerate(slots)
        ]
        replies = pipeline.run(stacked(batch) if request.param == "stacked" else batch)
        return fleet, {one.index: reply.error for reply in replies for one in reply.members}

    yield run
    for arena in arenas:
        arena.close()


# One value for each row was promised.
BROKEN = {"x": np.zeros((2, 9), np.float32)}
DONE = Done(id=1, settled=("x",), queue_ns=1, run_ns=1)


def test_steps_that_were_kept_and_cannot_be_answered_lose_their_states(replies_to):
    """To run them again would count them twice; every client is told to begin again."""
    fleet, errors = replies_to(RunResult(outputs=BROKEN, error=None, done=DONE), (0, 1))
    assert fleet.runs == 1
    assert {type(error) for error in errors.values()} == {StateLost}
    assert len(errors) == 2
    assert "expected [2, 1]" in str(errors[0])
    assert "begin the sequence again" in str(errors[0])


@pytest.mark.parametrize(
    ("outcome", "slots"),
    [
        (RunResult(outputs=BROKEN, error=None, done=DONE), (-1, -1)),
        (RunResult(outputs={}, error=GraphFailed("no")), (-1, -1)),
        (RunResult(outputs={}, error=GraphFailed("no")), (0, 1)),
    ],
)
def test_what_kept_nothing_is_run_again_for_each_alone(replies_to, outcome, slots):
    """Outside of sequences, and where the run itself failed, one bad request fails alone."""
    fleet, errors = replies_to(outcome, slots)
    assert fleet.runs == 1 + 2
    assert {type(error) for error in errors.values()} == {GraphFailed}


def test_steps_that_moved_on_and_found_no_memory_for_their_answers_lose_their_states(replies_to):
    """As with any other reason why they cannot be answered."""
    outcome = RunResult(outputs={}, error=OutOfMemory("no descriptor"), done=DONE)
    fleet, errors = replies_to(outcome, (0, 1))
    assert fleet.runs == 1
    assert {type(error) for error in errors.values()} == {StateLost}


def test_steps_whose_states_died_with_an_executor_are_not_run_again(replies_to):
    """There is nothing that they could go on from."""
    fleet, errors = replies_to(RunResult(outputs={}, error=ExecutorLost("dead")), slots=(0, 1))
    assert fleet.runs == 1
    assert {type(error) for error in errors.values()} == {ExecutorLost}
