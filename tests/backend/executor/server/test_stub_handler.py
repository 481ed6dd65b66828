"""A connection answers every message, and nothing that one stub sends hurts another."""

import contextlib
import errno
import gc
import logging
import os
import resource
import socket
import threading
import time
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from builders.null_models import comes_true, connected_to, num_descriptors, num_ours, write_null
from fakes.null_device import NullDevice, NullGraph
from fakes.null_faults import Fault
from ge_backend.device.base import GraphSource
from ge_backend.device.shared import Shared
from ge_backend.errors import (
    DeviceFault,
    ExecutorLost,
    GraphFailed,
    ModelError,
    OutOfMemory,
    ProtocolError,
)
from ge_backend.executor.client.executor_connection import ExecutorConnection
from ge_backend.executor.protocol import wire
from ge_backend.executor.protocol.arena import Arena
from ge_backend.executor.protocol.messages import (
    VERSION,
    Attach,
    Cancel,
    Detach,
    DeviceRows,
    Done,
    Failed,
    FreeTensors,
    GatherInput,
    Hello,
    Inspect,
    KeepStates,
    Load,
    Loaded,
    Ok,
    Prepare,
    Prepared,
    PrepareInput,
    Report,
    RetainOutput,
    RetainTensors,
    Run,
    Started,
    TensorMemory,
    TensorRef,
    Welcome,
)
from ge_backend.executor.server import executor as executor_module
from ge_backend.executor.server import graphs as module
from ge_backend.executor.server.graphs import loaded_graphs
from ge_backend.executor.server.services import GRAPH
from ge_backend.model.config.sequence_batching import State
from ge_backend.tensors import DATA_TYPES

X = TensorRef(name="x", dtype="FP32", shape=(2, 2), offset=0, nbytes=16)
Y = TensorRef(name="y", dtype="FP32", shape=(2,), offset=64, nbytes=8)


class Stub:
    """A connection, an arena and a loaded graph, without the session's care."""

    def __init__(self, source, device=None):
        self.executor, self.connection = connected_to(device)
        self.arena = Arena(4096)
        self.ask(Attach(id=1, arena=0, nbytes=4096), Ok, (self.arena.descriptor,))
        self.graph = self.ask(Load(id=2, source=source), Loaded).graph

    def ask(self, message, expected, descriptors=()):
        return self.connection.ask(message, expected, descriptors)

    def send(self, message):
        wire.send(self.connection.sock, message)

    def receive(self):
        message, descriptors = self.connection.inbox.receive()
        for descriptor in descriptors:
            os.close(descriptor)
        return message

    def run(self, request_id=10, **changes):
        given = {"graph": self.graph, "arena": 0, "inputs": (X,), "outputs": (Y,), **changes}
        return Run(id=request_id, **given)

    def raw(self, block, descriptors=()):
        socket.send_fds(self.connection.sock, [block], list(descriptors))

    def close(self):
        self.connection.close()
        self.arena.close()


@pytest.fixture
def source(tmp_path):
    return write_null(tmp_path / "model.null")


@pytest.fixture
def device():
    return NullDevice()


@pytest.fixture
def stub(source, device):
    stub = Stub(source, device)
    yield stub
    stub.close()
    stub.executor.join()
    stub.executor.close()
    assert loaded_graphs(stub.executor) == []


def test_a_run_is_outstanding_until_it_has_ended(stub, device, monkeypatch):
    """Its estimate counts while it waits and runs, and no longer when its stub is told."""
    page, go = stub.connection.outstanding, threading.Event()
    monkeypatch.setattr(device.faults, "strike", lambda *_: go.wait(30))
    stub.send(stub.run(10, cost_ns=70))
    stub.send(stub.run(11, cost_ns=5))
    assert comes_true(lambda: page.ns == 75)
    go.set()
    assert isinstance(stub.receive(), Done)
    assert page.ns in {5, 70, 0}
    assert isinstance(stub.receive(), Done)
    assert page.ns == 0


def test_a_stub_that_cannot_be_told_is_left(stub, monkeypatch):
    """Or it would wait for an answer that never comes."""
    send = wire.send_encoded

    def failing(sock, block, descriptors=(), **named):
        if isinstance(wire.decode(block), Done):
            raise ExecutorLost("the connection broke while sending")
        return send(sock, block, descriptors, **named)

    stub.send(stub.run(10))
    assert isinstance(stub.receive(), Done)
    monkeypatch.setattr(wire, "send_encoded", failing)
    stub.send(stub.run(11))
    with pytest.raises(ExecutorLost):
        stub.receive()


def test_a_run_that_fails_or_whose_stub_has_left_is_not_outstanding_for_ever(
    stub, device, tmp_path
):
    """Whatever becomes of it, its estimate is taken back, and other stubs see that."""
    device.inject(Fault(on="run", do="fail", nth=1))
    stub.send(stub.run(10, cost_ns=7))
    assert isinstance(stub.receive(), Failed)
    assert stub.connection.outstanding.ns == 0
    held = tmp_path / "held"
    device.inject(Fault(on="run", do="hold", nth=1, file=str(held)))
    for number in range(20, 30):
        stub.send(stub.run(number, cost_ns=1000))
    page = stub.connection.outstanding
    assert comes_true(lambda: page.ns > 0 and held.exists())
    stub.connection.close()
    held.unlink()
    assert comes_true(lambda: page.ns == 0)


def test_a_greeting_tells_who_answers(stub):
    """The welcome names protocol, device, lanes and process."""
    welcome = stub.ask(Hello(id=3, version=VERSION), Welcome)
    assert (welcome.device, welcome.lanes, welcome.pid) == ("null", 2, os.getpid())


def test_a_greeting_for_which_no_descriptor_is_left_is_refused_without_a_traceback(
    stub, caplog, monkeypatch
):
    """Stubs try again for as long as it takes, each on its own."""

    def none_left(_):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "dup", none_left)
        with pytest.raises(OutOfMemory, match="no descriptor is left"):
            stub.ask(Hello(id=3, version=VERSION), Welcome)
    assert "unforeseen" not in caplog.text
    assert stub.ask(Hello(id=4, version=VERSION), Welcome).device == "null"


def test_a_run_that_waits_can_be_cancelled(stub, device, monkeypatch):
    """It is answered at once; one that has begun, or that nobody knows, is not disturbed."""
    go = threading.Event()
    monkeypatch.setattr(device.faults, "strike", lambda *_: go.wait(30))
    for request_id in (10, 11, 12):
        stub.send(stub.run(request_id))
    assert comes_true(lambda: device.counts.running == 2)
    for run in (12, 10, 99):
        stub.send(Cancel(id=20, run=run))
    unrequested = stub.receive()
    assert (unrequested.id, unrequested.error) == (12, "Cancelled")
    go.set()
    answers = [stub.receive() for _ in range(2)]
    assert sorted(answer.id for answer in answers) == [10, 11]
    assert all(isinstance(answer, Done) for answer in answers)


def test_a_run_that_is_awaited_is_done_by_the_thread_that_reads(stub, device, monkeypatch):
    """No other thread has to wake up for it; what is not awaited goes to a lane's thread."""
    names = []
    monkeypatch.setattr(
        device.faults, "strike", lambda *_: names.append(threading.current_thread().name)
    )
    for awaited in (True, False):
        stub.send(stub.run(10, awaited=awaited))
        assert isinstance(stub.receive(), Done)
    assert [name.startswith("lane-") for name in names] == [False, True]


def test_an_awaited_run_that_has_to_wait_can_be_cancelled(stub, device, monkeypatch):
    """The thread that has read it reads on."""
    go = threading.Event()
    monkeypatch.setattr(device.faults, "strike", lambda *_: go.wait(30))
    for request_id in (10, 11):
        stub.send(stub.run(request_id))
    assert comes_true(lambda: device.counts.running == 2)
    stub.send(stub.run(12, awaited=True))
    stub.send(Cancel(id=20, run=12))
    unrequested = stub.receive()
    assert (unrequested.id, unrequested.error) == (12, "Cancelled")
    go.set()
    assert sorted(stub.receive().id for _ in range(2)) == [10, 11]


def test_another_version_is_told_so(stub):
    """A stub of another installation gets an error that says what to do."""
    with pytest.raises(ProtocolError, match="restart the server"):
        stub.ask(Hello(id=3, version=999), Welcome)


def test_a_run_reads_and_writes_the_arena(stub):
    """The inputs are the stub's memory and so are the outputs."""
    stub.arena.view(X)[...] = [[1, 2], [3, 4]]
    stub.send(stub.run())
    done = stub.receive()
    assert isinstance(done, Done)
    assert (done.id, done.settled, done.spilled) == (10, ("y",), ())
    assert stub.arena.view(Y).tolist() == [3, 7]


def test_a_solo_run_announces_that_it_begins(stub):
    """A solo run is answered twice: when it begins, and when it has ended."""
    stub.send(stub.run(solo=True))
    assert stub.receive() == Started(id=10)
    assert isinstance(stub.receive(), Done)


@pytest.mark.parametrize("slots", [(2,), (0, 2), (2**20,)])
def test_a_slot_that_is_not_kept_fails_that_run_alone(stub, slots):
    """States are kept in so many slots; a run that names another is refused and says so."""
    state = State(input="x", output="x", dtype=DATA_TYPES["FP32"], dims=(2,), initial_dims=(2,))
    keep = KeepStates(id=3, graph=stub.graph, states=(state,), count=2, batched=True, hidden=())
    stub.ask(keep, Ok)
    stub.send(stub.run(inputs=(), slots=slots, rows=4))
    answer = stub.receive()
    assert (answer.error, "of the 2 that are kept" in answer.message) == ("ProtocolError", True)
    stub.ask(Inspect(id=11), Report)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"graph": 99}, "graph 99 is not held"),
        ({"arena": 99}, "arena 99 was never attached"),
        ({"inputs": (TensorRef(name="x", dtype="?", shape=(), offset=0, nbytes=0),)}, "tensor"),
        ({"outputs": (TensorRef(name="y", dtype="FP32", shape=(9,), offset=4090, nbytes=36),)}, "lie"),
    ],
)  # fmt: skip
def test_a_run_that_refers_to_nothing_is_refused(stub, changes, words):
    """Unknown graphs and arenas and references outside them fail that run alone."""
    stub.send(stub.run(**changes))
    answer = stub.receive()
    assert isinstance(answer, Failed)
    assert (answer.id, answer.error) == (10, "ProtocolError")
    assert words in answer.message
    stub.send(stub.run(11))
    assert isinstance(stub.receive(), Done)


def test_a_failing_run_names_its_error(stub, device):
    """The engine's refusal comes back under its class name."""
    device.inject(Fault(on="run", do="out_of_memory", nth=1))
    stub.send(stub.run())
    answer = stub.receive()
    assert (answer.id, answer.error) == (10, OutOfMemory.__name__)


def test_what_a_client_sees_of_a_failed_run_has_no_folders(stub, source):
    """An engine may name the whole path; the model file's own name is enough."""
    stub.send(stub.run(inputs=()))
    message = stub.receive().message
    assert "model.null takes the inputs x" in message
    assert str(Path(source.path).parent) not in message


def test_a_broken_device_is_reported_before_the_stub_is_told(stub, device, caplog):
    """Who shares the executor's process is answered; an executor of its own ends instead."""
    told = []
    stub.executor.on_fault = lambda: told.append("fault")
    device.inject(Fault(on="run", do="fault", nth=1))
    stub.send(stub.run())
    answer = stub.receive()
    assert (answer.id, answer.error) == (10, DeviceFault.__name__)
    assert told == ["fault"]
    assert "the device failed" in caplog.text


def test_an_unforeseen_failure_is_answered_and_logged(stub, monkeypatch, caplog):
    """An exception that no engine should raise fails the run, with its traceback in the log."""

    def broken(*_, **__):
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(module, "run", broken)
    with caplog.at_level(logging.ERROR):
        stub.send(stub.run())
        answer = stub.receive()
    assert answer.error == GraphFailed.__name__
    assert "ZeroDivisionError: on purpose" in answer.message
    assert "Traceback" in caplog.text


def test_a_reply_that_is_too_long_becomes_an_error(stub, monkeypatch):
    """A run is always answered, also when its answer does not fit into a record."""
    long = TensorRef(name="n" * wire.MAX_MESSAGE_BYTES, dtype="FP32", shape=(), offset=0, nbytes=4)
    done = Done(id=10, settled=(), spilled=(long,), queue_ns=0, run_ns=0)
    monkeypatch.setattr(module, "run", lambda *_, **__: (done, os.memfd_create("s")))
    before = num_descriptors()
    stub.send(stub.run())
    assert "at most" in stub.receive().message
    assert comes_true(lambda: num_descriptors() <= before)


def test_a_very_long_error_is_cut(stub, monkeypatch):
    """An engine's message that would not fit into a record is shortened, not lost."""

    def verbose(*_, **__):
        raise GraphFailed("e" * 10**6)

    monkeypatch.setattr(module, "run", verbose)
    stub.send(stub.run())
    assert stub.receive().message.startswith("eee")


def test_what_a_failed_run_had_is_let_go(stub, monkeypatch):
    """Once it is answered, not when circles are collected: it may be most of a device's memory."""
    had = []

    def failing(*_, **__):
        tensors = np.zeros(1000)
        had.append(weakref.ref(tensors))
        raise GraphFailed("no")

    monkeypatch.setattr(module, "run", failing)
    gc.disable()
    try:
        stub.send(stub.run())
        assert stub.receive().error == GraphFailed.__name__
        assert comes_true(lambda: had[0]() is None)
    finally:
        gc.enable()


def test_a_model_that_cannot_be_loaded_is_the_stubs_error(stub, tmp_path):
    """A corrupt file is told to who asked, and nothing of it is kept."""
    (tmp_path / "bad.null").write_text("{")
    with pytest.raises(ModelError, match="JSON"):
        stub.ask(Load(id=3, source=GraphSource.of(tmp_path / "bad.null")), Loaded)
    assert stub.ask(Inspect(id=4), Report).graphs == 1


def test_a_graph_that_is_not_loaded_cannot_run(stub, tmp_path):
    """A run of it is a protocol error, not a crash."""
    (tmp_path / "bad.null").write_text("{")
    with pytest.raises(ModelError):
        stub.ask(Load(id=3, source=GraphSource.of(tmp_path / "bad.null")), Loaded)
    with pytest.raises(ProtocolError, match=f"graph {stub.graph + 1} is not held"):
        stub.ask(stub.run(4, graph=stub.graph + 1), Done)


def test_loading_twice_holds_once(stub, source):
    """A connection holds a graph once, however often it asks."""
    assert stub.ask(Load(id=3, source=source), Loaded).graph == stub.graph
    assert stub.ask(Inspect(id=4), Report).holders == 1


def test_preparing_is_measured_once(stub, device):
    """The second question for the same shapes is answered from memory."""
    given_input = PrepareInput(name="x", dtype="FP32", shape=(1, 4), fill=0.0)
    ask = Prepare(id=5, graph=stub.graph, inputs=(given_input,), repeats=2)
    first, second = stub.ask(ask, Prepared), stub.ask(ask, Prepared)
    assert (first.cached, second.cached) == (False, True)
    assert first.outputs == second.outputs == {"y": (1,)}
    assert (device.counts.prepares, device.counts.runs) == (1, 3)
    assert stub.ask(Inspect(id=6), Report).prepared == 1


def test_what_is_measured_waits_until_the_graph_has_settled(stub, monkeypatch):
    """Not what is only prepared, as after a restart, nor a first run beside others."""
    settled = []
    monkeypatch.setattr(NullGraph, "settle", lambda _: settled.append(1), raising=False)
    for number, (repeats, alone) in enumerate([(0, True), (1, False), (1, True)]):
        given_input = PrepareInput(name="x", dtype="FP32", shape=(1, 4 + number), fill=0.0)
        asked = Prepare(id=5, graph=stub.graph, inputs=(given_input,), repeats=repeats, alone=alone)
        assert not settled
        stub.ask(asked, Prepared)
    assert settled == [1]


def test_preparing_an_unknown_graph_is_refused(stub):
    """A graph that the connection does not hold cannot be prepared."""
    with pytest.raises(ProtocolError, match="graph 99"):
        stub.ask(Prepare(id=5, graph=99, inputs=(), repeats=1), Prepared)


def test_a_report_tells_what_is_loaded(stub):
    """And by how many stubs the executor is used."""
    report = stub.ask(Inspect(id=20), Report)
    assert (report.connections, report.device) == (1, "null")
    assert (report.graphs, report.holders, report.prepared) == (1, 1, 0)


def test_a_report_fits_a_message_however_many_graphs_there_are(stub, monkeypatch):
    """It tells numbers: a list of them was too long for one from some hundreds on."""
    one = SimpleNamespace(costs={"1x8": 1.0}, holder="one")
    monkeypatch.setattr(executor_module, "loaded_graphs", lambda _: [one] * 10_000)
    monkeypatch.setattr(Shared, "holders", lambda _: dict.fromkeys(range(10_000), 2))
    report = stub.ask(Inspect(id=20), Report)
    assert (report.graphs, report.holders, report.prepared) == (10_000, 20_000, 10_000)


def test_a_detached_arena_is_unmapped(stub):
    """After a detach nothing of the arena is left in the executor, and runs in it are refused."""
    before = num_descriptors()
    stub.ask(Detach(id=3, arena=0), Ok)
    assert comes_true(lambda: num_descriptors() <= before - 1)
    stub.send(stub.run())
    assert "never attached" in stub.receive().message


def test_detaching_what_is_not_attached_is_no_error(stub):
    """After a restart a stub may detach an arena that the new executor never saw."""
    stub.ask(Detach(id=3, arena=17), Ok)


def test_an_arena_needs_its_descriptor(stub):
    """Attaching without a descriptor, or one that is too short, is refused."""
    with pytest.raises(ProtocolError, match="0 descriptors"):
        stub.ask(Attach(id=3, arena=1, nbytes=4096), Ok)
    with pytest.raises(ProtocolError, match="holds 4096"):
        stub.ask(Attach(id=3, arena=1, nbytes=8192), Ok, (stub.arena.descriptor,))


def test_an_arena_for_which_no_descriptor_is_left_lacks_memory(stub, monkeypatch):
    """The kernel drops it on its way; the connection goes on, and a later one is attached."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    attach = Attach(id=3, arena=1, nbytes=4096)
    with contextlib.ExitStack() as full:
        full.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        lowest_free = os.dup(0)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, limits[1]))
        with pytest.raises(OutOfMemory, match="no descriptor is left"):
            stub.ask(attach, Ok, (stub.arena.descriptor,))
    stub.ask(replace(attach, id=4), Ok, (stub.arena.descriptor,))


def test_an_answer_is_not_a_question(stub):
    """A message that only executors send is refused by one."""
    with pytest.raises(ProtocolError, match="Ok is not a message for an executor"):
        stub.ask(Ok(id=3), Ok)


@pytest.mark.parametrize("block", [b"rubbish", b'{"type":"Run"}', b"[" * 50_000, b"\x00" * 9])
def test_a_malformed_message_ends_its_own_connection_only(stub, source, block, caplog):
    """Who sends rubbish is told so and dropped, with a line in the log; its neighbour goes on."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stub.executor.accept(theirs)
    other = ExecutorConnection(ours)
    with caplog.at_level(logging.ERROR):
        other.sock.send(block)
        answer, _ = other.inbox.receive()
        assert (answer.id, answer.error) == (0, "ProtocolError")
        with pytest.raises(ExecutorLost):
            other.inbox.receive()
    assert "a connection is dropped" in caplog.text
    stub.send(stub.run())
    assert isinstance(stub.receive(), Done)
    other.close()


def test_descriptors_that_nobody_asked_for_are_closed(stub):
    """A message with descriptors it should not have leaves none open."""
    before = num_descriptors()
    extra = os.memfd_create("extra")
    stub.raw(wire.encode(Inspect(id=3)), [extra])
    assert isinstance(stub.receive(), Report)
    stub.raw(wire.encode(Inspect(id=4)), [extra] * 20)
    assert isinstance(stub.receive(), Report)
    os.close(extra)
    assert comes_true(lambda: num_descriptors() <= before)


def test_a_stub_that_leaves_gives_back_its_graphs(source, device):
    """When the connection closes, what it held is released."""
    stub = Stub(source, device)
    stub.close()
    stub.executor.join()
    assert list(stub.executor.services.of(GRAPH).holders().values()) == [0]
    stub.executor.close()
    assert device.counts.closes == 1


def test_runs_of_a_stub_that_left_are_not_started(source, tmp_path):
    """Queued runs of a stub that is gone cost the device nothing, and release their graph."""
    device, held = NullDevice(lanes=1), tmp_path / "held"
    device.inject(Fault(on="run", do="hold", file=str(held)))
    stub = Stub(source, device)
    for request_id in range(10, 20):
        stub.send(stub.run(request_id))
    assert comes_true(held.exists)
    stub.close()
    stub.executor.join()
    held.unlink()
    stub.executor.close()
    assert device.counts.runs == 1
    assert loaded_graphs(stub.executor) == []


def test_a_slow_load_does_not_hold_up_another_stub(stub, tmp_path):
    """While one stub's model loads, another's runs go on."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stub.executor.accept(theirs)
    other = ExecutorConnection(ours)
    held = tmp_path / "held"
    hold = {"on": "load", "do": "hold", "file": str(held)}
    slow = write_null(tmp_path / "slow.null", faults=[hold])
    loading = threading.Thread(target=other.ask, args=(Load(id=1, source=slow), Loaded))
    loading.start()
    assert comes_true(held.exists)
    stub.send(stub.run())
    assert isinstance(stub.receive(), Done)
    assert loading.is_alive()
    held.unlink()
    loading.join()
    other.close()


def test_a_process_of_another_user_is_turned_away(stub, monkeypatch, caplog):
    """The kernel's word on who is at the other end decides before any message is read."""
    uid = os.getuid()
    monkeypatch.setattr(executor_module, "peer_uid", lambda _: uid + 1)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stub.executor.accept(theirs)
    with pytest.raises(ExecutorLost):
        ExecutorConnection(ours)
    assert f"user {uid + 1}" in caplog.text
    assert stub.executor.num_connections == 1


def test_hundreds_of_failing_runs_do_not_block_the_reader(stub):
    """The reader keeps reading while nobody takes the answers: both sides never wait at once."""
    count = 5000
    sender = threading.Thread(
        target=lambda: [stub.send(stub.run(i, graph=99)) for i in range(count)], daemon=True
    )
    sender.start()
    sender.join(20)
    assert not sender.is_alive()
    assert {stub.receive().id for _ in range(count)} == set(range(count))


def second_stub(stub, source):
    """Return another stub of the same executor; the first one's fixture ends that."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stub.executor.accept(theirs)
    other = object.__new__(Stub)
    other.executor, other.connection, other.arena = (
        stub.executor,
        ExecutorConnection(ours),
        Arena(4096),
    )
    other.ask(Attach(id=1, arena=0, nbytes=4096), Ok, (other.arena.descriptor,))
    other.graph = other.ask(Load(id=2, source=source), Loaded).graph
    return other


@pytest.mark.parametrize("awaited", [False, True])
def test_a_stub_that_does_not_read_its_answers_holds_up_nobody(stub, source, awaited):
    """No lane waits for it, nor the watch over deadlines; when it reads, it has them all."""
    other, count = second_stub(stub, source), 2000
    for number in range(count):
        late = {"deadline_ns": 1} if number % 3 == 1 else {}
        wanted = {"outputs": (Y,)} if number % 100 else {"outputs": ()}
        other.send(other.run(number, awaited=awaited, **wanted, **late))
    assert comes_true(lambda: len(stub.executor.lanes) == 0)
    assert stub.executor.lanes.oldest_ns() == 0
    stub.send(stub.run(10))
    assert isinstance(stub.receive(), Done)
    answers = [other.receive() for _ in range(count)]
    assert sorted(answer.id for answer in answers) == list(range(count))
    assert {type(answer) for answer in answers if answer.id % 3 == 1} == {Failed}
    assert {type(answer) for answer in answers if answer.id % 3 != 1} == {Done}
    other.close()


def test_a_stub_that_asks_and_reads_no_answer_is_read_no_further(stub, source):
    """It waits for itself; what it has asked is answered once it reads."""
    other, count = second_stub(stub, source), 5000
    asked, read = [], []

    def ask():
        for number in range(count):
            wire.send(other.connection.sock, Detach(id=number, arena=9))
            asked.append(number)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    assert comes_true(lambda: len(asked) > 300)
    stub.send(stub.run(10))
    assert isinstance(stub.receive(), Done)
    read += [other.receive().id for _ in range(count)]
    asking.join(20)
    assert read == asked == list(range(count))
    other.close()


def test_thousands_of_runs_leak_nothing(stub):
    """After many runs, spilled ones among them, there are no more descriptors than before."""
    before = num_ours()
    for request_id in range(2000):
        stub.send(stub.run(request_id, outputs=(Y,) if request_id % 2 else ()))
        stub.receive()
    assert comes_true(lambda: num_ours() <= before)


def test_measurements_do_not_overlap(tmp_path):
    """Two models that warm up at the same time are measured one after the other."""
    first = Stub(write_null(tmp_path / "a.null", cost_ms={"*": 80}))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    first.executor.accept(theirs)
    connection = ExecutorConnection(ours)
    source = write_null(tmp_path / "b.null", cost_ms={"*": 80})
    graph = connection.ask(Load(id=2, source=source), Loaded).graph
    given = (PrepareInput(name="x", dtype="FP32", shape=(2, 2), fill=0.0),)
    started = time.monotonic()
    first.send(Prepare(id=9, graph=first.graph, inputs=given, repeats=1))
    wire.send(connection.sock, Prepare(id=9, graph=graph, inputs=given, repeats=1))
    answers = [first.receive(), connection.inbox.receive()[0]]
    assert all(isinstance(answer, Prepared) for answer in answers)
    assert time.monotonic() - started >= 4 * 0.08
    connection.close()
    first.close()
    first.executor.join()
    first.executor.close()


def test_a_device_in_host_memory_keeps_nothing(stub):
    """It says so, and what is freed was never there."""
    asked = RetainTensors(id=20, graph=stub.graph, owner="one", buffer_bytes=(64,))
    assert stub.ask(asked, TensorMemory).name == ""
    stub.send(FreeTensors(id=21, graph=stub.graph, keys=(1, 2)))
    report = stub.ask(Inspect(id=22), Report)
    assert (report.kept_tensors, report.kept_bytes) == (0, 0)


def test_tensors_of_a_graph_that_is_not_held_cannot_stay(stub):
    """As nothing of such a graph can be asked for."""
    with pytest.raises(ProtocolError, match="graph 99 is not held"):
        stub.ask(RetainTensors(id=20, graph=99, owner="one", buffer_bytes=()), TensorMemory)


@pytest.mark.parametrize(
    "changes",
    [
        {
            "retained": (
                RetainOutput(name="y", dtype="FP32", shape=(2,), key=1, also_to_host=False),
            )
        },
        {
            "inputs": (),
            "gathered": (
                GatherInput(
                    name="x",
                    dtype="FP32",
                    shape=(2, 2),
                    fill=0,
                    rows=(DeviceRows(key=1, first=0, count=2, length=2),),
                ),
            ),
        },
        {"unrequested": ("y",)},
    ],
    ids=["retained", "gathered", "unrequested"],
)
def test_a_run_on_tensors_that_stay_is_refused_where_none_do(stub, changes):
    """Rather than run without them."""
    stub.send(stub.run(10, **changes))
    answer = stub.receive()
    assert isinstance(answer, Failed)
    assert (answer.error, "no owner" in answer.message) == ("ProtocolError", True)
