"""An executor inside this process."""

import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from builders.attempts import runs_of
from builders.null_models import (
    SHORT,
    comes_true,
    num_ours,
    order,
    run_values,
    running,
    sums,
    write_null,
)
from ge_backend.engines.null.device import NullDevice, NullGraph
from ge_backend.errors import (
    DeadlineExceeded,
    DeviceUnavailable,
    ExecutorLost,
    GeError,
    GraphFailed,
    OutOfMemory,
    ProtocolError,
)
from ge_backend.executor.client.executor_connection import ExecutorConnection
from ge_backend.executor.client.session import Session
from ge_backend.executor.process import inline
from ge_backend.executor.process.inline import InlineExecutors, connect_inline, reap_with_server
from ge_backend.executor.process.inline_address import InlineAddress
from ge_backend.executor.protocol.messages import (
    History,
    HistoryRequest,
    Inspect,
    PrepareInput,
    Report,
    Run,
)
from ge_backend.executor.server import executor
from ge_backend.executor.server.stub_handler import StubHandler
from ge_backend.serving.fleet.fleet import Fleet

HANGS = """
import logging, sys, threading
from pathlib import Path
import numpy as np
from ge_backend.device.base import GraphSource
from ge_backend.engines.null.device import NullGraph
from ge_backend.executor.client.session import Session
from ge_backend.executor.process.inline import connect_inline
from ge_backend.executor.process.inline_address import InlineAddress
from ge_backend.executor.protocol.messages import History, Inspect, HistoryRequest, Report, Run
from ge_backend.serving.assumptions.comparison import run_once

logging.basicConfig(level=logging.INFO)
session = Session(
    lambda: connect_inline("null", run_timeout_s=0.3),
    GraphSource.of(Path(sys.argv[1])),
    arena_bytes=4096,
    on_restart=lambda: None,
)
begun, graph_run = threading.Event(), NullGraph.run
NullGraph.run = lambda *given, **more: (begun.set(), graph_run(*given, **more))[1]
run = threading.Thread(target=run_once, args=(session, {"x": np.ones((1, 2), np.float32)}))
run.start()
if sys.argv[2] == "1":
    begun.wait()
    session.close()
run.join()
"""


def open_session(folder):
    source = write_null(folder / "model.null")
    return Session(
        lambda: connect_inline("null"), source, arena_bytes=4096, on_restart=lambda: None
    )


@pytest.fixture
def session(tmp_path):
    """One on an executor in this process, whose threads end with it."""
    before = threading.active_count()
    opened = open_session(tmp_path)
    yield opened
    opened.close()
    assert comes_true(lambda: threading.active_count() <= before)


def test_an_inline_executor_serves_and_ends_with_its_session(tmp_path):
    """Inside the stub's own process the same session works, and nothing of it stays."""
    before = num_ours()
    session = open_session(tmp_path)
    assert session.executor_pid == os.getpid()
    assert sums(run_values(session, 1, 2)) == [3, 6]
    session.close()
    del session
    assert comes_true(lambda: num_ours() <= before)


def test_its_device_is_given_back_when_closing_returns(tmp_path, monkeypatch):
    """A command's interpreter may end next, and an engine that is at work then aborts it."""
    before, closed, close = set(threading.enumerate()), [], NullDevice.close

    def slowly(device):
        time.sleep(0.1)
        close(device)
        closed.append(device)

    monkeypatch.setattr(NullDevice, "close", slowly)
    monkeypatch.setattr(executor, "POLL_S", 20.0)  # nobody waits for the next look
    session = open_session(tmp_path)
    begin = time.monotonic()
    session.close()
    assert len(closed) == 1
    assert set(threading.enumerate()) <= before
    assert time.monotonic() - begin < 10


def test_a_device_that_is_not_there_cannot_be_inline():
    """An unknown device is an error that opens nothing."""
    before = num_ours()
    with pytest.raises(DeviceUnavailable, match="'abacus' is unknown"):
        connect_inline("abacus")
    assert num_ours() <= before


def test_a_device_whose_executor_cannot_be_made_is_closed(monkeypatch):
    """Whoever tries again finds it free."""
    opened, closed = [], []

    def refuse(device, **_):
        opened.append(device)
        monkeypatch.setattr(device, "close", lambda: closed.append(device), raising=False)
        raise OutOfMemory("the pool is larger than the device")

    monkeypatch.setattr(executor, "Executor", refuse)
    with pytest.raises(OutOfMemory, match="the pool is larger"):
        connect_inline("null")
    assert closed == opened


def test_a_lone_run_is_made_by_the_thread_that_waits_for_it(session, monkeypatch):
    """No other thread has to wake up; of several runs that is the last one."""
    names, run = [], NullGraph.run

    def noted(*given, **more):
        names.append(threading.current_thread().name)
        return run(*given, **more)

    monkeypatch.setattr(NullGraph, "run", noted)
    assert sums(run_values(session, 1)) == [3]
    assert names == [threading.current_thread().name]
    assert sums(run_values(session, 1, 2, 3)) == [3, 6, 9]
    assert sum(name.startswith("lane-") for name in names) >= 2


def lone(**told):
    """Return a run of x [1, 2] in the stub's own process."""
    return Run(id=0, graph=1, arena=0, inputs=(), outputs=(), **told), {
        "x": np.full((1, 2), 1.5, np.float32)
    }


def test_a_run_here_takes_arrays_as_they_are(session, monkeypatch):
    """Neither copied nor encoded, by the thread that asks; its outputs are the caller's."""
    seen, run = [], NullGraph.run

    def noted(graph, inputs, places, **more):
        seen.append((threading.current_thread(), inputs["x"], places, more["exclusive"]))
        return run(graph, inputs, places, **more)

    monkeypatch.setattr(NullGraph, "run", noted)
    asked, inputs = lone()
    outcome = session.run_here(asked, inputs)
    ((thread, x, places, exclusive),) = seen
    assert thread is threading.current_thread()
    assert x is inputs["x"]
    assert not places
    assert exclusive
    assert outcome.outputs["y"].tolist() == [3.0]
    assert outcome.done.alone


def test_a_run_here_waits_for_a_lane_and_no_longer_than_its_deadline(tmp_path, monkeypatch):
    """Where another thread's run has the only one, such as a measurement of warm-up."""
    source = write_null(tmp_path / "model.null")
    shared = Session(
        lambda: connect_inline("null", lanes=1), source, arena_bytes=4096, on_restart=lambda: None
    )
    begun, go_on, run = threading.Event(), threading.Event(), NullGraph.run

    def held(*given, **more):
        begun.set()
        assert go_on.wait(20)
        return run(*given, **more)

    monkeypatch.setattr(NullGraph, "run", held)
    other = threading.Thread(target=shared.run_here, args=lone())
    other.start()
    assert begun.wait(20)
    late = shared.run_here(*lone(deadline_ns=time.monotonic_ns() + 10**7))
    assert isinstance(late.error, DeadlineExceeded)
    threading.Timer(0.05, go_on.set).start()
    assert shared.run_here(*lone()).outputs["y"].tolist() == [3.0]
    other.join()
    shared.close()


def test_a_run_here_waits_for_no_measurement(tmp_path, monkeypatch):
    """It has the only lane to itself while another thread measures beside it."""
    source, connect = write_null(tmp_path / "model.null"), InlineExecutors().connect
    serving, learning = (
        Session(
            partial(connect, "null", lanes=1), source, arena_bytes=4096, on_restart=lambda: None
        )
        for _ in range(2)
    )
    begun, go_on, prepare = threading.Event(), threading.Event(), NullGraph.prepare

    def held(*given):
        begun.set()
        assert go_on.wait(20)
        return prepare(*given)

    monkeypatch.setattr(NullGraph, "prepare", held)
    inputs = (PrepareInput(name="x", dtype="FP32", shape=(1, 2), fill=1.0),)
    measuring = threading.Thread(target=learning.prepare, args=(inputs, 1))
    measuring.start()
    assert begun.wait(20)
    outcome = serving.run_here(*lone(deadline_ns=time.monotonic_ns() + 10**10))
    assert measuring.is_alive()
    go_on.set()
    measuring.join()
    assert outcome.outputs["y"].tolist() == [3.0]
    learning.close()
    serving.close()


def test_closing_waits_for_what_another_thread_measures(tmp_path, monkeypatch):
    """The process may end next, which a thread in an engine would abort; none is started anew."""
    source, connect = write_null(tmp_path / "model.null"), partial(connect_inline, "null", lanes=1)
    begun, steps, prepare = threading.Event(), [], NullGraph.prepare
    session = Session(connect, source, arena_bytes=4096, on_restart=partial(steps.append, "lost"))

    def held(*given):
        begun.set()
        time.sleep(0.3)
        steps.append("measured")
        return prepare(*given)

    def measure():
        with suppress(GeError):
            session.prepare((PrepareInput(name="x", dtype="FP32", shape=(1, 2), fill=1.0),), 1)

    monkeypatch.setattr(NullGraph, "prepare", held)
    measuring = threading.Thread(target=measure)
    measuring.start()
    assert begun.wait(20)
    session.close()
    assert steps == ["measured"]
    measuring.join()
    assert steps == ["measured"]


def test_runs_side_by_side_end_as_they_do_and_none_has_all_cores(session, monkeypatch):
    """The first two wait for each other here; one that fails, or is of no graph, is told so."""
    both, alone, run = threading.Barrier(2), [], NullGraph.run

    def met(graph, inputs, places, **more):
        alone.append(more["exclusive"])
        if len(alone) <= 2:
            both.wait(20)
        if len(alone) == 4:
            raise ZeroDivisionError
        return run(graph, inputs, places, **more)

    monkeypatch.setattr(NullGraph, "run", met)
    unknown, inputs = lone()
    runs = [lone(), lone(), lone(), (replace(unknown, graph=99), inputs)]
    ended = dict(session.run_side_by_side(runs))
    assert isinstance(ended.pop(3).error, ProtocolError)
    assert [ended[at].outputs["y"].tolist() for at in range(3)] == [[3.0]] * 3
    assert alone[:2] == [False, False]
    failed, fine = sorted(
        (outcome.error is None for _, outcome in session.run_side_by_side([lone(), lone()])),
    )
    assert (failed, fine) == (False, True)
    assert session.run_here(*lone()).done.alone


def test_a_run_here_of_no_graph_is_told_so(session, monkeypatch):
    """Such as one that was planned before its executor was another one."""
    run, inputs = lone()
    assert isinstance(session.run_here(replace(run, graph=99), inputs).error, ProtocolError)
    monkeypatch.setattr(session, "graph", 99)
    ended = dict(session.run_side_by_side([lone(), lone()]))
    assert [type(ended[at].error) for at in range(2)] == [ProtocolError, ProtocolError]


def test_an_error_of_a_run_here_is_its_outcome(session, monkeypatch):
    """The session goes on; what is unforeseen is told as a failure of the graph."""

    def broken(*given, **more):
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr(NullGraph, "run", broken)
        assert isinstance(session.run_here(*lone()).error, GraphFailed)
    assert session.run_here(*lone()).error is None


def test_devices_inline_run_side_by_side(tmp_path, monkeypatch):
    """The thread that sends makes a run of the last one only: each waits for the other here."""
    source = write_null(tmp_path / "model.null")
    sessions = {
        name: Session(
            partial(connect_inline, name), source, arena_bytes=4096, on_restart=lambda: None
        )
        for name in ("null:0", "null:1")
    }
    fleet = Fleet(sessions, SHORT)
    both, run = threading.Barrier(2), NullGraph.run

    def met(*given, **more):
        both.wait(20)
        return run(*given, **more)

    def stage(session, chosen, *, again):
        session.reserve(128 * len(chosen), keep=again)
        return [order(session, value) for value in chosen]

    monkeypatch.setattr(NullGraph, "run", met)
    outcomes = [ended.outcome for ended in runs_of(fleet, [1000.0, 1000.0], stage)]
    assert sorted(sums(outcomes)) == [0, 3]
    fleet.close()


def test_more_answers_than_a_socket_holds_stop_nobody(session):
    """Whoever sends also answers, and must not wait for room that only it can make."""
    values = range(2000)
    session.reserve(256 * len(values))
    orders = [order(session, value) for value in values]
    outcomes = dict(running(session, orders, lambda index: index % 7 == 0))
    assert len(outcomes) == len(values)
    done = {index: outcome for index, outcome in outcomes.items() if outcome.error is None}
    assert sums(done.values()) == [3.0 * index for index in done]


@pytest.mark.parametrize("closing", [False, True])
def test_a_run_that_never_ends_ends_the_process(tmp_path, closing):
    """Also while somebody waits to leave: nothing else ends a call into an engine."""
    source = write_null(tmp_path / "model.null", cost_ms={"*": 60_000})
    begin = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-c", HANGS, source.path, str(int(closing))],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ended.returncode == 1
    assert "GE_RUN_TIMEOUT_S allows 0.3: its executor ends" in ended.stderr
    assert "ends with this process" in ended.stderr
    assert time.monotonic() - begin < 40


def test_an_error_is_that_runs_alone_and_the_connection_goes_on(session, monkeypatch):
    """As with an executor elsewhere."""
    run = NullGraph.run

    def failing(*given, **more):
        monkeypatch.setattr(NullGraph, "run", run)
        raise GraphFailed("not this one")

    monkeypatch.setattr(NullGraph, "run", failing)
    assert sums(run_values(session, 1)) == ["GraphFailed"]
    assert sums(run_values(session, 1)) == [3]


def test_a_defect_ends_the_connection_and_the_next_use_opens_another(session, monkeypatch):
    """As where a thread of the executor's dies of it."""
    answer = StubHandler._answer

    def broken(*given):
        monkeypatch.setattr(StubHandler, "_answer", answer)
        raise ZeroDivisionError

    monkeypatch.setattr(StubHandler, "_answer", broken)
    with pytest.raises(ZeroDivisionError):
        session.inspect()
    assert (session.runs_here, session.broken) == (False, True)
    assert sums(run_values(session, 1)) == [3]
    assert (session.runs_here, session.broken) == (True, False)


def test_leaving_ends_what_waits(session):
    """And again does nothing."""
    connection = session._connection
    session.close()
    assert not connection._stays
    connection.close()


def asked_at(address):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(address.socket)
    return ExecutorConnection(sock)


def ours():
    return [address for address in InlineAddress.listed() if address.pid == os.getpid()]


def test_it_tells_what_it_ran_as_executors_elsewhere_do(session):
    """Whoever asks is told, and holds up nobody who leaves."""
    asked, inputs = lone(bucket=(1, 2), real_rows=1)
    assert session.run_here(asked, inputs).error is None
    (address,) = ours()
    assert (address.device, address.owner_pid) == ("null", os.getppid())
    guest = asked_at(address)
    history = guest.ask(HistoryRequest(id=guest.next_id(), after=0), History)
    assert [(run.bucket, run.real_rows) for run in history.runs] == [((1, 2), 1)]
    assert guest.ask(Inspect(id=guest.next_id()), Report).graphs == 1
    session.close()
    assert ours() == []
    with pytest.raises(ExecutorLost):
        guest.ask(Inspect(id=guest.next_id()), Report)
    guest.close()


def test_connections_share_an_executor_and_what_it_has_loaded(tmp_path, monkeypatch):
    """The second loads nothing and goes on when the first one leaves; after them comes another."""
    source, executors = write_null(tmp_path / "model.null"), InlineExecutors()
    loaded, closed = [], []
    make, close = NullGraph.__init__, NullDevice.close
    monkeypatch.setattr(NullGraph, "__init__", lambda *given: loaded.append(1) or make(*given))
    monkeypatch.setattr(NullDevice, "close", lambda device: closed.append(1) or close(device))

    def opened():
        connect = partial(executors.connect, "null")
        return Session(connect, source, arena_bytes=4096, on_restart=lambda: None)

    first, second = opened(), opened()
    with ThreadPoolExecutor(2) as threads:  # a session is one thread's
        both = [
            threads.submit(lambda s=s: [sums(run_values(s, 1, 2)) for _ in range(20)])
            for s in (first, second)
        ]
    assert [found.result() for found in both] == [[[3, 6]] * 20] * 2
    assert len(loaded) == 1
    first.close()
    assert not closed
    assert sums(run_values(second, 1, 2)) == [3, 6]
    second.close()
    assert len(closed) == 1
    third = opened()
    assert sums(run_values(third, 1, 2)) == [3, 6]
    assert len(loaded) == 2
    third.close()


def test_devices_are_opened_side_by_side(monkeypatch):
    """One that takes long holds up no other, nor those that leave."""
    both, opened = threading.Barrier(2), NullDevice.open

    def together(*given, **more):
        both.wait(10)
        return opened(*given, **more)

    monkeypatch.setattr(NullDevice, "open", together)
    executors = InlineExecutors()
    with ThreadPoolExecutor(2) as threads:
        connections = list(threads.map(executors.connect, ("null:0", "null:1")))
    for connection in connections:
        connection.close()


@pytest.fixture
def started(monkeypatch):
    """What was started, each of which keeps the name that it was given."""
    commands, kept = [], []

    def start(command, *, pass_fds, **_):
        commands.append(command)
        kept.append(socket.socket(fileno=os.dup(pass_fds[0])))

    monkeypatch.setattr(inline.subprocess, "Popen", start)
    yield commands
    for name in kept:
        name.close()


def test_one_is_started_for_a_server(started, monkeypatch):
    """Whichever of its stubs comes first."""
    monkeypatch.setattr(inline.reap_orphans, "server_of", lambda _: os.getpid())
    reap_with_server()
    reap_with_server()
    assert [command[-1] for command in started] == [str(os.getpid())]


def test_what_is_no_stub_starts_none(started):
    """Such as a command that opens a model in its own process."""
    reap_with_server()
    assert started == []
