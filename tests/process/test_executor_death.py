"""kill -9 of executors: what was in flight is repeated, what kills is found out."""

import functools
import os
import resource
import signal
import threading
import time
from pathlib import Path

import pytest

from builders.null_models import (
    DEADLY,
    comes_true,
    deadly,
    order,
    run_values,
    running,
    sums,
    write_null,
)
from ge_backend.errors import ExecutorLost
from ge_backend.executor.client import watch
from ge_backend.executor.protocol.messages import PrepareInput


@pytest.fixture
def source(tmp_path):
    return write_null(tmp_path / "model.null", cost_ms={"*": 60}, faults=[deadly()])


def test_runs_in_flight_are_repeated_and_succeed(machine, source):
    """An executor killed in the middle of a batch costs a restart, and every run is answered."""
    session = machine.session(source)
    pid = machine.pid()
    kill = functools.partial(os.kill, pid, signal.SIGKILL)
    outcomes = run_values(session, *range(1, 41), meanwhile=kill)
    assert sums(outcomes) == [3.0 * value for value in range(1, 41)]
    assert machine.restarts == 1
    assert machine.pid() != pid


def test_every_session_survives_the_death_of_the_executor(machine, source):
    """All stubs of a killed executor meet again in one new one."""
    sessions = [machine.session(source) for _ in range(4)]
    results = {}

    def work(index):
        results[index] = sums(run_values(sessions[index], *range(8)))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.05)
    machine.kill()
    for thread in threads:
        thread.join()
    assert list(results.values()) == [[3.0 * value for value in range(8)]] * 4
    for session in sessions:  # one that was done before the death finds out now
        assert sums(run_values(session, 1)) == [3.0]
    assert machine.restarts == 4
    assert {session.executor_pid for session in sessions} == {machine.pid()}


def test_a_death_while_idle_is_only_noticed_by_the_next_batch(machine, source):
    """Nothing happens until there is something to do; then it is done."""
    session = machine.session(source)
    machine.kill()
    assert comes_true(lambda: not machine.executors())
    assert machine.restarts == 0
    assert sums(run_values(session, 1, 2)) == [3, 6]
    assert machine.restarts == 1


def test_many_deaths_in_a_row_are_all_survived(machine, source):
    """Killing it again and again between batches never costs a run."""
    session = machine.session(source)
    for value in range(5):
        assert sums(run_values(session, value)) == [3.0 * value]  # so that there is one to kill
        timer = threading.Timer(0.03, machine.kill)
        timer.start()
        assert sums(run_values(session, value, value + 1)) == [3.0 * value, 3.0 * value + 3]
        timer.join()


def test_a_run_that_always_kills_fails_alone_in_its_batch(machine, source):
    """It is repeated once with nothing beside it; its neighbours in the batch are answered."""
    session = machine.session(source)
    outcomes = run_values(session, 1, 2, DEADLY, 4, 5)
    assert sums(outcomes) == [3, 6, "ExecutorLost", 12, 15]
    assert "repeated with nothing else running" in str(outcomes[2].error)
    assert machine.restarts == 2
    assert sums(run_values(session, 6)) == [18]


def test_two_runs_that_always_kill_both_fail_and_nothing_else(machine, source):
    """Every deadly run of a batch is found out on its own."""
    session = machine.session(source)
    outcomes = run_values(session, DEADLY, 1, DEADLY, 2)
    assert sums(outcomes) == ["ExecutorLost", 3, "ExecutorLost", 6]


def test_a_broken_device_ends_its_executor(machine, tmp_path):
    """It ends without answering; what was in flight is repeated, and what broke it found out."""
    fault = {"on": "run", "do": "fault", "value": DEADLY}
    session = machine.session(write_null(tmp_path / "model.null", faults=[fault]))
    outcomes = run_values(session, 1, DEADLY, 3)
    assert sums(outcomes) == [3, "ExecutorLost", 9]
    assert machine.restarts == 2
    assert sums(run_values(session, 4)) == [12]


def test_a_broken_device_ends_an_executor_that_can_open_no_more_files(machine, tmp_path):
    """That its lock stays behind is nothing: who waits for an answer would wait for ever."""
    fault = {"on": "run", "do": "fault", "value": DEADLY}
    session = machine.session(write_null(tmp_path / "model.null", faults=[fault]))
    assert sums(run_values(session, 1)) == [3]
    open_ = {int(entry.name) for entry in Path(f"/proc/{machine.pid()}/fd").iterdir()}
    free = min(set(range(len(open_) + 1)) - open_)
    resource.prlimit(machine.pid(), resource.RLIMIT_NOFILE, (free, free))
    rescue = threading.Timer(20, os.kill, (machine.pid(), signal.SIGKILL))
    rescue.start()
    assert sums(run_values(session, DEADLY)) == ["ExecutorLost"]
    assert rescue.is_alive()
    rescue.cancel()
    assert machine.restarts == 2


def test_a_device_that_breaks_on_load_ends_its_executor(machine, tmp_path):
    """The session tries another executor, and then says that loading is what ends them."""
    source = write_null(tmp_path / "model.null", faults=[{"on": "load", "do": "fault"}])
    with pytest.raises(ExecutorLost, match=r"died 2 times over loading .*model\.null"):
        machine.session(source)


def test_a_killing_run_costs_a_neighbouring_session_nothing(machine, source):
    """While one session's runs kill executor after executor, another's runs all succeed."""
    victim, killer = machine.session(source), machine.session(source)
    done, outcomes = threading.Event(), []

    def serve():
        while not done.is_set():
            outcomes.extend(sums(run_values(victim, 1, 2, 3)))

    thread = threading.Thread(target=serve)
    thread.start()
    assert comes_true(lambda: outcomes)
    for _ in range(3):
        assert sums(run_values(killer, DEADLY)) == ["ExecutorLost"]
    assert comes_true(lambda: len(outcomes) >= 9)
    done.set()
    thread.join()
    assert outcomes == [3.0, 6.0, 9.0] * (len(outcomes) // 3)


def test_who_stops_early_and_loses_the_executor_goes_on(machine, source):
    """Outcomes nobody takes and an executor that dies meanwhile do not disturb the next batch."""
    session = machine.session(source)
    session.reserve(4096)
    runs = running(session, [order(session, value) for value in range(20)])
    next(runs)
    machine.kill()
    runs.close()
    assert sums(run_values(session, 7)) == [21]


def test_a_larger_arena_is_shown_to_the_next_executor(machine, source):
    """After a death the arena of now is attached, whatever it was when the session began."""
    session = machine.session(source)
    for values in (3, 60, 200):
        session.reserve(128 * values)
        machine.kill()
        assert comes_true(lambda: not machine.executors())
        session.reserve(128 * values)
        ((_, outcome),) = running(session, [order(session, values)])
        assert sums([outcome]) == [3.0 * values]
    assert session.arena.id == 2


def test_growth_right_after_a_death_is_attached(machine, source):
    """The first use after a death may be a growing arena."""
    session = machine.session(source)
    machine.kill()
    assert comes_true(lambda: not machine.executors())
    session.reserve(1 << 20)
    ((_, outcome),) = running(session, [order(session, 5)])
    assert sums([outcome]) == [15]
    assert machine.restarts == 1


def test_static_shapes_are_prepared_again(machine, tmp_path):
    """A new executor knows the shapes that the old one had compiled."""
    session = machine.session(write_null(tmp_path / "static.null", static_shapes=True))
    inputs = (PrepareInput(name="x", dtype="FP32", shape=(2, 3), fill=1.0),)
    assert session.prepare(inputs, 2).cached is False
    machine.kill()
    assert sums(run_values(session, 1, 2)) == [3, 6]
    assert session.inspect().prepared == 1


def test_a_model_whose_loading_kills_is_refused_and_harms_nobody(machine, source, tmp_path):
    """It is tried twice, then it is an error; sessions that were there before go on."""
    session = machine.session(source)
    bad = write_null(tmp_path / "bad.null", faults=[{"on": "load", "do": "die"}])
    with pytest.raises(ExecutorLost, match="died 2 times over loading"):
        machine.session(bad, on_restart=lambda: None)
    assert sums(run_values(session, 1)) == [3]


def test_preparing_that_kills_is_refused(machine, tmp_path):
    """A bucket that no executor survives is an error after the second one."""
    fatal = write_null(
        tmp_path / "fatal.null", faults=[{"on": "prepare", "do": "die", "value": DEADLY}]
    )
    session = machine.session(fatal)

    def prepare(fill):
        inputs = (PrepareInput(name="x", dtype="FP32", shape=(1, 1), fill=fill),)
        return session.prepare(inputs, 1)

    with pytest.raises(ExecutorLost, match="died 2 times over preparing"):
        prepare(DEADLY)
    assert prepare(1.0).cost_ns > 0


def test_a_stopped_executor_is_waited_for(machine, source, monkeypatch):
    """One that is stopped for a while is slow, not dead."""
    monkeypatch.setattr(watch, "STOPPED_S", 20.0)  # this machine may be slow to continue it
    session = machine.session(source)
    machine.kill(signal.SIGSTOP)
    timer = threading.Timer(0.3, machine.kill, args=(signal.SIGCONT,))
    timer.start()
    assert sums(run_values(session, 1)) == [3]
    timer.join()
    assert machine.restarts == 0


def test_a_killed_executor_is_no_zombie(machine, source):
    """Whoever started it reaps it."""
    session = machine.session(source)
    pid = machine.pid()
    machine.kill()
    run_values(session, 1)
    assert comes_true(lambda: not Path(f"/proc/{pid}").exists())


def test_a_killed_executor_that_nobody_misses_leaves_nothing(machine, source):
    """Who started it removes the socket, the lock and the folder that it could not remove."""
    session = machine.session(source)
    session.close()
    machine.kill()
    assert comes_true(machine.is_empty)
