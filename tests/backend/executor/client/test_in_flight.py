"""Runs in flight: as many as the socket takes, none mistaken for another."""

import socket
import threading

import numpy as np
import pytest

from builders.null_models import (
    order,
    run_values,
    running,
    sums,
)
from fakes.null_faults import Fault
from ge_backend.errors import (
    ExecutorLost,
    GraphFailed,
    OutOfMemory,
    ProtocolError,
)
from ge_backend.executor.client.executor_connection import ExecutorConnection
from ge_backend.executor.protocol import wire
from ge_backend.executor.protocol.arena import Segment
from ge_backend.executor.protocol.messages import VERSION, Failed, Hello, Ok, Welcome
from ge_backend.executor.protocol.outstanding import Outstanding


def test_more_runs_than_the_socket_takes_do_not_deadlock(session):
    """Thousands of runs at once come back, though nobody reads answers while submitting."""
    count = 3000
    session.reserve(256)
    template = order(session, 1)
    outcomes = list(running(session, [template] * count))
    assert sorted(index for index, _ in outcomes) == list(range(count))
    assert set(sums([outcome for _, outcome in outcomes])) == {3.0}


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_who_stops_early_mistakes_no_later_answer(session, bench, taken):
    """Outcomes that nobody took are waited for: the next batch gets its own, in its own arena."""
    bench.device.inject(Fault(on="run", do="sleep", ms=5))
    session.reserve(4096)
    runs = running(session, [order(session, 7) for _ in range(20)])
    for _ in range(taken):
        next(runs)
    runs.close()
    assert bench.device.counts.running == 0
    assert sums(run_values(session, 1, 2)) == [3, 6]
    assert bench.restarts == 0


class Impostor:
    """Greets like an executor, and then answers as it was told to."""

    def __init__(self, *answers):
        self.ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        threading.Thread(target=self._serve, args=(answers,), daemon=True).start()

    def _serve(self, answers):
        inbox = wire.Inbox(self.theirs)
        with self.theirs:
            for answer in answers:
                message, _ = inbox.receive()
                if isinstance(message, Hello):
                    welcome = Welcome(id=message.id, version=VERSION, device="x", lanes=1, pid=1)
                    page = Outstanding()
                    wire.send(self.theirs, welcome, (page.descriptor,))
                    page.close()
                elif isinstance(answer, bytes):
                    self.theirs.send(answer)
                else:
                    wire.send(self.theirs, answer)


@pytest.mark.parametrize(
    "answer", [Ok(id=999), Failed(id=999, error="GraphFailed", message="whose?"), b"rubbish"]
)
def test_an_answer_to_nothing_fails_the_batch_and_the_connection(session, bench, answer):
    """An answer that fits no run in flight fails the runs; the next batch has a new connection."""
    impostor = Impostor(None, answer)
    session._connection.close()
    session._connection = ExecutorConnection(impostor.ours)
    (outcome,) = run_values(session, 1)
    assert isinstance(outcome.error, (ProtocolError, GraphFailed))
    assert sums(run_values(session, 2)) == [6]


def test_an_answer_to_another_question_is_refused(bench):
    """Out of step, the connection closes itself, so that the next use connects again."""
    impostor = Impostor(None, Ok(id=999))
    connection = ExecutorConnection(impostor.ours)
    with pytest.raises(ProtocolError, match="expected Ok"):
        connection.ask(Hello(id=connection.next_id(), version=VERSION), Ok)
    with pytest.raises(ExecutorLost):
        connection.ask(Hello(id=connection.next_id(), version=VERSION), Ok)


def test_outputs_are_views_of_the_arena(session):
    """Nothing is copied on the way back when the shape was predicted."""
    session.reserve(1024)
    staged = order(session, 5)
    ((_, outcome),) = running(session, [staged])
    assert np.shares_memory(outcome.outputs["y"], session.arena.view(staged.outputs[0]))


def test_outputs_whose_memory_did_not_arrive_are_not_looked_for_elsewhere(session, monkeypatch):
    """As without a free descriptor: the kernel drops what came, and inputs lie at those places."""
    session.reserve(1024)
    orders = [order(session, 5, predict=False)]
    with monkeypatch.context() as full:
        full.setattr(wire, "_DESCRIPTOR_SPACE", 0)
        ((_, outcome),) = running(session, orders)
    assert isinstance(outcome.error, OutOfMemory)
    assert outcome.outputs == {}
    ((_, outcome),) = running(session, orders)
    assert outcome.outputs["y"].tolist() == [15, 15]


def test_memory_that_cannot_be_mapped_fails_its_run_alone(session, bench, monkeypatch):
    """The connection, and what else is in flight, goes on."""
    session.reserve(1024)
    orders = [order(session, 5, predict=False), order(session, 6)]

    def refuse(descriptor, nbytes):
        raise OutOfMemory("no")

    with monkeypatch.context() as full:
        full.setattr(Segment, "map", refuse)
        outcomes = dict(running(session, orders))
    assert sums([outcomes[0], outcomes[1]]) == ["OutOfMemory", 18]
    assert bench.restarts == 0
