"""Runs of sequences whose outputs cannot be sent once their states have moved on."""

import os
import time

import numpy as np
import pytest

from ge_backend.errors import GraphFailed, StateLost
from ge_backend.executor.protocol.arena import Segment
from ge_backend.executor.protocol.messages import Run
from ge_backend.executor.server.queue import Grant
from ge_backend.executor.server.runs import HeldGraph, run
from ge_backend.tensors import DATA_TYPES, Signature, TensorSpec

SPEC = TensorSpec(name="y", dtype=DATA_TYPES["FP32"], dims=(-1,), axes=("",))


class Graph:
    """Says FP32."""

    signature = Signature(inputs=(), outputs=(SPEC,), axis_limits={})


class Slots:
    """Gives or raises what it is told to."""

    def __init__(self, dtype=np.float32, error=None):
        self.dtype, self.error = dtype, error

    def run(self, inputs, outputs, slots, starting, *, rows, exclusive):
        if self.error is not None:
            raise self.error
        return {"y": np.ones(rows, self.dtype)}, {"h": (1,)}


@pytest.fixture
def step():
    """A function that runs a step on these slots."""
    segment, descriptor = Segment.create(4096)
    os.close(descriptor)
    message = Run(id=7, graph=1, arena=0, inputs=(), outputs=(), slots=(0,), rows=1)

    def run_on(slots):
        held = HeldGraph(Graph(), states=slots)
        done, spilled = run(held, segment, message, Grant(came_ns=time.monotonic_ns()))
        os.close(spilled)
        return done

    return run_on


def test_the_shapes_of_states_come_with_the_outputs(step):
    """The stub batches steps by them."""
    assert step(Slots()).states == {"h": (1,)}


def test_outputs_that_cannot_be_sent_lose_the_states(step):
    """The states have moved on by then, so that the step cannot be repeated."""
    with pytest.raises(StateLost, match=r"float64.*begin the sequence again"):
        step(Slots(np.float64))


def test_a_run_that_failed_can_be_repeated(step):
    """Its own error says so: the states are as before."""
    with pytest.raises(GraphFailed):
        step(Slots(error=GraphFailed("no")))
