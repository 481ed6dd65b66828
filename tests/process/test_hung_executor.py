"""An executor that hangs is ended and replaced, and what it had not answered is answered."""

import os
import signal
import threading
import time

import pytest

from builders.attempts import runs_of
from builders.null_models import (
    comes_true,
    fleet_of,
    interpreter,
    order,
    run_values,
    sums,
    write_null,
)
from fakes.null_device import PYTHON
from ge_backend.errors import DeadlineExceeded
from ge_backend.executor.client import watch

# A second of silence, and the start of another, on a busy machine; less than any other limit.
SOON_S = 25.0


@pytest.fixture
def source(tmp_path):
    return write_null(tmp_path / "model.null", cost_ms={"*": 60})


def stop(machine):
    """Stop the executor, as a debugger or a frozen container would; it gets no signal else."""
    pid = machine.pid()
    os.kill(pid, signal.SIGSTOP)
    return pid


def test_runs_of_a_stopped_executor_are_repeated(machine, tmp_path):
    """Nobody continues it, so it is ended; every run is answered rightly, seconds later."""
    # Its last run is not over when it is stopped; the next executor has one less to do.
    unending = {"on": "run", "do": "sleep", "ms": 60_000, "nth": 30}
    source = write_null(tmp_path / "model.null", cost_ms={"*": 60}, faults=[unending])
    session = machine.session(source)
    pid, begin = machine.pid(), time.monotonic()
    outcomes = run_values(session, *range(1, 31), meanwhile=lambda: os.kill(pid, signal.SIGSTOP))
    assert sums(outcomes) == [3.0 * value for value in range(1, 31)]
    assert time.monotonic() - begin < SOON_S
    assert machine.restarts == 1
    assert machine.pid() != pid


def test_an_executor_that_is_stopped_while_idle_is_replaced_without_being_asked(machine, source):
    """The stub keeps looking when it has nothing to do, so that the next request finds it gone."""
    session = machine.session(source)
    pid = stop(machine)
    assert comes_true(lambda: all(p.pid != pid for p in machine.executors()), SOON_S)
    assert sums(run_values(session, 2)) == [6]


def test_loading_into_a_stopped_executor_ends(machine, source, tmp_path):
    """A stub that comes later shakes hands with nobody; it too finds out, and starts another."""
    first = machine.session(source)
    os.kill(machine.pid(), signal.SIGSTOP)
    begin = time.monotonic()
    second = machine.session(write_null(tmp_path / "other.null"))
    assert sums(run_values(second, 4)) == [12]
    assert time.monotonic() - begin < SOON_S
    assert sums(run_values(first, 5)) == [15]


def test_an_executor_that_stops_before_it_listens_is_replaced(machine, source, tmp_path):
    """As in a driver's init that hangs: who starts it holds the lock for which others wait."""
    begun = tmp_path / "begun"
    text = f'[ -e {begun} ] || {{ touch {begun}; kill -STOP $$; }}\nexec {PYTHON} "$@"'
    python = interpreter(tmp_path, text)
    begin = time.monotonic()
    session = machine.session(source, python=python)
    assert sums(run_values(session, 4)) == [12]
    assert time.monotonic() - begin < SOON_S


def test_a_short_stop_is_waited_for(machine, source, monkeypatch):
    """An executor that goes on at once is not replaced."""
    monkeypatch.setattr(watch, "STOPPED_S", 20.0)  # this machine may be slow to continue it
    session = machine.session(source)
    pid = machine.pid()

    def pause():
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(0.6, os.kill, [pid, signal.SIGCONT]).start()

    assert sums(run_values(session, 1, 2, 3, meanwhile=pause)) == [3, 6, 9]
    assert machine.restarts == 0
    assert machine.pid() == pid


def test_a_long_run_is_not_taken_for_a_hung_executor(machine, tmp_path):
    """It beats while it runs, whatever that takes."""
    session = machine.session(write_null(tmp_path / "model.null", cost_ms={"*": 4000}))
    assert sums(run_values(session, 7)) == [21]
    assert machine.restarts == 0


def test_a_run_that_never_ends_is_given_up(machine, tmp_path):
    """It ends its executor twice and fails; its neighbour is answered by the next one."""
    fault = {"on": "run", "do": "sleep", "ms": 60_000, "value": 666.0}
    source = write_null(tmp_path / "model.null", faults=[fault])
    session = machine.session(source, run_timeout_s=1.0)
    outcomes = run_values(session, 1, 666.0, 3)
    assert sums(outcomes) == [3, "ExecutorLost", 9]
    assert machine.restarts == 2


def test_a_deadline_is_kept_while_an_executor_says_nothing(machine, source):
    """Before it counts as hung, and is ended; the batch itself ends when it is."""
    session = machine.session(source)
    assert sums(run_values(session, 1)) == [3]
    stop(machine)
    soon_ns = time.monotonic_ns() + 300_000_000
    orders = []

    def staged(_, chosen, *, again):
        session.reserve(128, keep=again)
        orders[:] = [order(session, 1, deadline_ns=soon_ns)]
        return orders

    runs = runs_of(fleet_of(session), [1.0], staged)
    ended = next(runs)
    assert ended.given_up
    assert isinstance(ended.outcome.error, DeadlineExceeded)
    assert list(runs) == []
    assert sums(run_values(session, 2)) == [6]
