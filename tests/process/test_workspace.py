"""The truth about a shared pool: whatever is killed, cancelled or broken, no result is wrong.

Every graph with a place in the pool fills it with a mark while it runs and gives wrong results when
somebody else has written there (`tests/fakes/null_scratch.py`).
"""

import os
import random
import threading
import time
from pathlib import Path

import pytest

from builders.null_models import comes_true, order, run_values, running, sums, write_null
from builders.sharing import Runner
from ge_backend.device.base import GraphSource
from ge_backend.executor.protocol.messages import PrepareInput

TESTS = Path(__file__).resolve().parents[1]
POOL = 12_000
FAILING, STARVING = 13.0, 17.0  # inputs over which a run fails, or finds no memory
FAULTS = [
    {"on": "run", "do": "fail", "value": FAILING},
    {"on": "run", "do": "out_of_memory", "value": STARVING},
]
# Bound places that overlap, compiled ones, and engines that are measured: 38 kB in a pool of 12.
MODELS = {
    "a": {"workspace_bytes": 8_000},
    "b": {"workspace_bytes": 6_000},
    "c": {"workspace_bytes": 3_000},
    "static": {"workspace_bytes": {"2x3": 4_000, "*": 100}, "static_shapes": True},
    "measured": {"workspace_bytes": {"*": 5_000}},
    "whole": {"workspace_bytes": POOL},
}
X = PrepareInput(name="x", dtype="FP32", shape=(2, 3), fill=1.0)
# A run may be answered late, and one that was in flight when two executors died is given up.
ALLOWED = {"DeadlineExceeded", "ExecutorLost"}


@pytest.fixture
def load(machine, tmp_path):
    """Return a function that gives a session with a model, warmed up."""

    def load(name, **changes):
        given = MODELS.get(name, {}) | {"cost_ms": {"*": 1}} | changes
        faults = FAULTS + given.pop("faults", [])
        file = tmp_path / "models" / name / "1" / "model.null"
        if not file.exists():
            file.parent.mkdir(parents=True)
            write_null(file, faults=faults, **given)
        return machine.session(GraphSource.of(file), pool_bytes=POOL)

    return load


def warm(session):
    if session.shape_policy.prepared:
        session.compile([{"x": (2, 3)}])
    session.prepare((X,), 1)
    return session


def expected(value):
    """Return what a run of this value has to give: its sum, or the error that it asks for."""
    return {FAILING: "GraphFailed", STARVING: "OutOfMemory"}.get(value, 3 * value)


def settled(session):
    """Return what the executor says of its pool once nothing runs any more."""
    assert comes_true(lambda: session.inspect().pool.leased_bytes == 0)
    report = session.inspect()
    assert report.defects == ()
    assert report.pool.peak_bytes <= POOL
    return report


class Client:
    """A thread that sends all kinds of batches over one session and checks every answer."""

    def __init__(self, session, seed, batches, progress):
        self.wrong, self.lost = [], 0
        self._session, self._batches, self._progress = session, batches, progress
        self._dice = random.Random(seed)
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def join(self):
        self._thread.join()

    def _work(self):
        for _ in range(self._batches):
            values = [float(self._dice.randrange(20)) for _ in range(self._dice.randint(1, 4))]
            self._session.reserve(1024)
            orders = [
                order(self._session, value, deadline_ns=self._deadline_ns()) for value in values
            ]
            runs = running(self._session, orders)
            for index, outcome in runs:
                (got,) = sums([outcome])
                self.lost += got == "ExecutorLost"
                if got != expected(values[index]) and got not in ALLOWED:
                    self.wrong.append((values[index], got))
                if self._dice.random() < 0.1:
                    break  # the client has gone; what is in flight is waited for
            runs.close()
            self._progress.release()

    def _deadline_ns(self):
        """Return a deadline for some runs; a few are too short for what waits before them."""
        late = self._dice.choice([0, 0, 0, 2_000_000, 10**10])
        return time.monotonic_ns() + late if late else 0


def kill_whoever_serves(machine):
    """Kill the executor as soon as there is one, and wait for its end: the next one is another."""
    found = []
    assert comes_true(lambda: found.append(machine.executors()) or found[-1])
    (executor,) = found[-1]
    executor.kill()
    assert comes_true(lambda: executor.pid not in [left.pid for left in machine.executors()])


def test_a_pool_stays_true_under_faults_cancellations_deadlines_and_deaths(machine, load):
    """Twelve clients of six models, and an executor that is killed three times in between."""
    progress, batches = threading.Semaphore(0), 20
    sessions = [warm(load(name)) for name in MODELS for _ in range(2)]
    clients = [Client(session, seed, batches, progress) for seed, session in enumerate(sessions)]
    for _ in range(3):
        for _ in range(batches * len(clients) // 4):
            progress.acquire()
        kill_whoever_serves(machine)
    for client in clients:
        client.join()
    assert [client.wrong for client in clients] == [[]] * len(clients)
    for session in sessions:
        assert sums(run_values(session, 1, 2)) == [3, 6]
    report = settled(sessions[0])
    assert sorted(name.split("/")[0] for name in report.pool.holders) == sorted(MODELS)
    assert report.pool.size_bytes == POOL
    assert comes_true(lambda: sessions[0].outstanding.pool.size_bytes == POOL)


@pytest.mark.parametrize("step", ["load", "prepare", "run"])
def test_an_executor_killed_at_any_step_leaves_nothing_behind(machine, load, tmp_path, step):
    """While one model is held at a step, others wait or run; after the death all is as it was."""
    neighbours = [warm(load(name)) for name in ("b", "measured")]
    runners = [Runner(session, range(30)) for session in neighbours]
    held = tmp_path / "held"
    done = []

    def come():
        session = load("a", faults=[{"on": step, "do": "hold", "nth": 1, "file": str(held)}])
        done.append(session)
        done.append(sums(run_values(warm(session) if step == "prepare" else session, 7)))

    thread = threading.Thread(target=come)
    thread.start()
    assert comes_true(held.exists, 20)
    machine.kill()
    held.unlink()  # of the dead one; the next executor is held at the same step
    assert comes_true(held.exists, 20)
    held.unlink()
    thread.join()
    for runner in runners:
        assert sums(runner.join()) == list(map(expected, range(30)))
    for session in neighbours:  # one that was done before the death is with the next executor now
        assert sums(run_values(session, 1)) == [expected(1)]
    assert done[1] == [21.0]
    assert len(settled(done[0]).pool.holders) == 3


def test_a_stub_killed_while_it_runs_and_waits_gives_its_places_back(machine, load, tmp_path):
    """Its run that has begun ends, those that wait are dropped, and others have their turn."""
    session = warm(load("a"))
    held = tmp_path / "held"
    hold = [{"on": "run", "do": "hold", "nth": 1, "file": str(held)}]
    load("whole", faults=hold)  # makes the model; the stub loads the same
    code = STUB.format(folder=str(machine.folder), pool=POOL, models=str(tmp_path))
    stub = machine.python(code, env=os.environ | {"PYTHONPATH": str(TESTS)})
    assert comes_true(held.exists, 20)
    runner = Runner(session, [1.0, 2.0])
    stub.kill()
    stub.wait()
    held.unlink()
    assert sums(runner.join()) == [3.0, 6.0]
    report = settled(session)
    assert comes_true(lambda: session.inspect().connections == 2)
    assert len(report.pool.holders) == 2


STUB = """
import os
from pathlib import Path
from builders.null_models import address_in, run_values
from ge_backend.device.base import GraphSource
from ge_backend.executor.process.launch import connect
from ge_backend.executor.client.session import Session

address = address_in(Path({folder!r}), owner_pid=os.getppid(), pool_bytes={pool})
source = GraphSource.of(Path({models!r}) / "models" / "whole" / "1" / "model.null")
session = Session(lambda: connect(address), source, arena_bytes=4096, on_restart=lambda: None)
run_values(session, *range(8))
"""
