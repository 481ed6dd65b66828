"""A session with an executor in this process: runs, errors, growth."""

import socket
import threading
import time
from pathlib import Path

import pytest

from builders.null_models import (
    comes_true,
    connected_to,
    num_ours,
    order,
    run_values,
    running,
    sums,
)
from fakes.null_faults import Fault
from ge_backend.errors import (
    ExecutorLost,
    GeError,
    GraphFailed,
    OutOfMemory,
)
from ge_backend.executor.client.executor_connection import ExecutorConnection
from ge_backend.executor.client.session import Session
from ge_backend.executor.protocol.arena import Segment
from ge_backend.executor.protocol.messages import PrepareInput
from ge_backend.executor.server.device_tensors import RetainedTensors


def connected_again(executor):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    executor.accept(theirs)
    return ExecutorConnection(ours)


def inputs_of(*shape):
    return (PrepareInput(name="x", dtype="FP32", shape=shape, fill=1.0),)


def test_a_session_knows_its_graph_and_its_device(session):
    """Signature, shapes' freedom and lanes are those of the loaded graph and its device."""
    assert session.signature.inputs[0].describe() == "FP32 [batch, length]"
    assert session.shape_policy.prepared is False
    assert session.lanes == 2


def test_every_run_has_its_own_outcome(session):
    """Many runs at once come back with the sums of their own inputs."""
    outcomes = run_values(session, *range(1, 40))
    assert sums(outcomes) == [3.0 * value for value in range(1, 40)]
    assert all(outcome.done.run_ns > 0 for outcome in outcomes)


def test_no_runs_are_no_outcomes(session):
    """An empty batch ends at once."""
    assert list(running(session, [])) == []


def test_outcomes_come_as_runs_end(session, tmp_path, bench):
    """A short run that was submitted last is answered before a long one."""
    held = tmp_path / "held"
    bench.device.inject(Fault(on="run", do="hold", value=5.0, file=str(held)))
    session.reserve(1024)
    runs = running(session, [order(session, 5), order(session, 1)])
    assert next(runs)[0] == 1
    assert comes_true(held.exists)
    held.unlink()
    assert [index for index, _ in runs] == [0]


def test_a_result_of_unpredicted_shape_arrives_too(session):
    """Without a place for an output, it comes in memory of its own and outlives the next batch."""
    session.reserve(1024)
    ((_, outcome),) = running(session, [order(session, 5, predict=False)])
    run_values(session, 1, 2, 3)
    assert outcome.outputs["y"].tolist() == [15, 15]


def test_one_failing_run_does_not_fail_its_neighbours(session, bench):
    """The engine's error is in the outcome of the run that caused it."""
    bench.device.inject(Fault(on="run", do="fail", value=13))
    outcomes = run_values(session, 1, 13, 2)
    assert sums(outcomes) == [3, "GraphFailed", 6]
    assert isinstance(outcomes[1].error, GraphFailed)


def test_a_late_run_is_not_made(session):
    """A run whose deadline has passed has that as its outcome."""
    session.reserve(1024)
    late = order(session, 1, deadline_ns=time.monotonic_ns() - 1)
    assert sums([outcome for _, outcome in running(session, [late])]) == ["DeadlineExceeded"]


def test_a_larger_batch_gets_a_larger_arena(session, bench):
    """Growth is attached before the runs that need it, and the arena before it is detached."""
    for values in (3, 400, 3):
        assert sums(run_values(session, *range(values))) == [3.0 * v for v in range(values)]
    assert session.arena.id == 1
    assert comes_true(lambda: len(mapped(bench.executors[0])) == 1)


def mapped(executor):
    (connection,) = executor._handlers
    return connection.arenas


def test_kept_outcomes_survive_a_second_round(session):
    """With `keep`, the outputs of a first round stay as they were through a second one."""
    session.reserve(1024)
    ((_, first),) = running(session, [order(session, 5)])
    for _ in range(3):
        session.reserve(4096, keep=True)
        list(running(session, [order(session, 9) for _ in range(8)]))
    assert first.outputs["y"].tolist() == [15, 15]


def test_an_arena_that_cannot_grow_says_so_and_goes_on(session):
    """Too large a batch fails; the next one is served."""
    with pytest.raises(OutOfMemory):
        session.reserve(1 << 62)
    assert sums(run_values(session, 1)) == [3]


def test_growth_that_the_executor_refuses_is_repaired(session, bench, monkeypatch):
    """If the executor cannot map the new arena, that batch fails and the next one is served."""
    real = Segment.map

    def refuse(descriptor, nbytes):
        raise OutOfMemory("no more mappings")

    monkeypatch.setattr(Segment, "map", refuse)
    with pytest.raises(OutOfMemory, match="no more mappings"):
        session.reserve(1 << 16)
    monkeypatch.setattr(Segment, "map", real)
    assert sums(run_values(session, 1)) == [3]
    assert bench.restarts == 0


def at_most(nbytes):
    """Return what maps segments where the system refuses larger ones."""
    real = Segment.map

    def limited(descriptor, wanted):
        if wanted > nbytes:
            raise OutOfMemory(f"cannot map {wanted} bytes")
        return real(descriptor, wanted)

    return limited


def test_an_executor_that_has_no_room_for_a_batch_serves_the_next_one(session, bench, monkeypatch):
    """Connection and arena stay as they were, and so do what was placed and the states."""
    monkeypatch.setattr(Segment, "map", at_most(1 << 20))
    session.reserve(4096)
    placed = order(session, 5)
    for _ in range(3):
        with pytest.raises(OutOfMemory, match="cannot map 2097152 bytes"):
            session.reserve(2 << 20, keep=True)
        assert session.arena.nbytes == 4096
    assert sums([outcome for _, outcome in running(session, [placed])]) == [15]
    assert sums(run_values(session, *range(100))) == [3.0 * value for value in range(100)]
    assert (len(bench.connections), bench.restarts) == (1, 0)
    assert comes_true(lambda: list(mapped(bench.executors[0])) == [session.arena.id])


def test_two_sessions_of_one_executor_share_a_graph(bench):
    """Stubs with equal sources run one graph; each has its own arena and answers."""
    executor, connection = connected_to(bench.device)
    bench.executors.append(executor)
    first = bench.session(connect=lambda: connection)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    executor.accept(theirs)
    second = bench.session(connect=lambda: ExecutorConnection(ours))
    assert first.inspect().holders == 2
    results = {}

    def work(session, value):
        results[value] = {tuple(sums(run_values(session, value))) for _ in range(200)}

    threads = [threading.Thread(target=work, args=pair) for pair in ((first, 1.0), (second, 2.0))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {1.0: {(3.0,)}, 2.0: {(6.0,)}}
    assert bench.device.counts.loads == 1


def test_closing_twice_is_no_error(session):
    """A session may be closed again, as finalisers do."""
    session.close()
    session.close()


def test_thousands_of_runs_leak_nothing(session):
    """Descriptors and memory stay as they are, however many runs there are."""
    run_values(session, *range(8))
    before, pages = num_ours(), resident_pages()
    for round_ in range(500):
        run_values(session, *range(8))
        session.reserve(1024)
        list(running(session, [order(session, round_, predict=False)]))
    assert comes_true(lambda: num_ours() <= before)
    assert resident_pages() - pages < 2000


def resident_pages():
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])


def test_every_error_of_an_executor_is_one_of_ours(session, bench):
    """Whatever fails there is a GeError here."""
    for deed in ("fail", "out_of_memory"):
        bench.device.inject(Fault(on="prepare", do=deed, nth=1))
        with pytest.raises(GeError):
            session.prepare(inputs_of(1, 1), 1)
        bench.device.faults.clear()
    assert session.prepare(inputs_of(1, 1), 1).cached is False


def test_shapes_are_compiled_once_for_all_sessions(bench):
    """Two stubs of a model compile it once; a shape that is new compiles it again."""
    executor, connection = connected_to(bench.device)
    first, second = (
        Session(connect, bench.source, arena_bytes=4096, on_restart=lambda: None)
        for connect in (lambda: connection, lambda: connected_again(executor))
    )
    first.compile([{"x": (1, 8)}, {"x": (2, 8)}])
    second.compile([{"x": (2, 8)}, {"x": (1, 8)}])
    assert bench.device.counts.compiles == 1
    second.compile([{"x": (4, 8)}])
    assert bench.device.counts.compiles == 2
    first.close()
    second.close()
    executor.join()
    executor.close()


def test_shapes_are_compiled_again_after_a_loss(bench):
    """A new executor is told what the old one had compiled."""
    session = bench.session()
    session.compile([{"x": (1, 8)}])
    bench.cut()
    assert sums(run_values(session, 1)) == [3]
    assert bench.device.counts.compiles == 2


def test_tensors_that_stay_are_asked_for_again_after_a_restart(bench, session):
    """A new executor knows the owner as soon as the session is open again."""
    asked, open_ = [], RetainedTensors.open

    def noted(self, message, graph):
        asked.append((message.owner, message.buffer_bytes))
        return open_(self, message, graph)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RetainedTensors, "open", noted)
        assert session.retain_tensors("owner", [64]).name == ""
        bench.cut()
        assert sums(run_values(session, 1)) == [3]
    assert asked == [("owner", (64,))] * 2
    session.free_tensors([1])
    bench.cut()
    session.free_tensors([1])


def test_runs_of_a_connection_that_was_lost_write_to_nobodys_memory(session, bench):
    """The executor may live on, and a run that it has begun with it."""
    begun, go = threading.Event(), threading.Event()

    def late(*_):
        begun.set()
        go.wait(20)

    bench.device.faults.strike = late
    session.reserve(4096)
    lost = session.in_flight()
    lost.submit(0, order(session, 5))
    assert begun.wait(10)
    bench.device.faults.strike = lambda *_: None
    bench.cut()
    with pytest.raises(ExecutorLost) as caught:
        lost.receive()
    session.lose(caught.value)
    session.reopen()
    session.reserve(4096)
    memory = session.arena.view(session.arena.place("all", "UINT8", (4096,), 4096))
    memory[...] = 1
    executor = bench.executors[0]
    go.set()
    assert comes_true(lambda: not len(executor.lanes))
    assert (memory == 1).all()
