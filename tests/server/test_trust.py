"""The short form of `make trust`: what goes wrong under load costs no request."""

import signal
import time

import psutil
import pytest
from benchmarks.trust import trial
from benchmarks.trust.faults import FAULTS
from benchmarks.trust.load import LOST_S, MODEL, Load
from benchmarks.trust.served import serving
from benchmarks.trust.trial import figures_of, tried

from builders.null_models import comes_true
from ge_backend.executor.process.host_processes import stubs_of
from ge_tools.tritonserver import processes_of, shared_memory_of
from ge_tools.watch.scrape import scrape

SHORT = ("executor killed", "executor stopped for good")


def test_requests_share_batches_and_are_padded(installation):
    """So that rows that are mixed up, or padding that counts, would be seen as wrong answers."""
    with serving() as server:
        load = Load(server.grpc, 16)
        time.sleep(2.0)
        answers = load.close()
        assert comes_true(lambda: taken(server) >= len(answers))
        counted = scrape(server.metrics)
    names = ("requests", "batches", "elements_real", "elements_run")
    requests, batches, real, run = (counted.total(f"ge_{n}_total", model=MODEL) for n in names)
    assert {answer.outcome for answer in answers} == {"right"}
    assert batches < requests / 2
    assert run > real


def taken(server):
    """Return how many requests the backend says it took, as far as it has been told."""
    return scrape(server.metrics).total("ge_requests_total", model=MODEL)


def test_without_a_fault_each_request_runs_once(installation, monkeypatch):
    """One that ran twice would have the right answer, too."""
    monkeypatch.setattr(trial, "PUBLISHED_S", 5.0)  # a busy machine publishes late
    fault = next(f for f in FAULTS if f.name == "none")
    found = tried(fault, clients=8, before_s=1, after_s=1)
    assert found.run == found.requests == found.right > 0


@pytest.mark.parametrize("fault", [f for f in FAULTS if f.name in SHORT], ids=lambda f: f.name)
def test_no_request_is_lost_or_wrong(installation, fault):
    """Eight clients notice nothing but a pause: whoever waits for a stopped one waits for ever."""
    found = tried(fault, clients=8, before_s=1, after_s=2)
    assert (found.lost, found.wrong, found.errors) == (0, 0, 0)
    assert found.right == found.requests > 0
    assert found.longest_s < LOST_S / 2


def test_requests_keep_their_limit_while_the_executor_hangs(installation):
    """One of a second is answered soon after it, and not when another executor can answer."""
    fault = next(f for f in FAULTS if f.timeout_us)
    found = tried(fault, clients=8, before_s=1, after_s=6)
    assert (found.lost, found.wrong) == (0, 0)
    assert found.errors > 0
    assert found.longest_s < max(5, found.recovery_s)


def right_since(load, since_s):
    """Return how many requests that were sent since then have the right answer."""
    return sum(answer.outcome == "right" and answer.sent_s > since_s for answer in [*load._answers])


def test_a_dead_stub_is_replaced(installation):
    """The model answers again by itself."""
    with serving() as server:
        (dead,) = stubs_of(server.pid)
        load = Load(server.grpc, 4)
        assert comes_true(lambda: taken(server) > 0)
        psutil.Process(dead.pid).kill()
        assert comes_true(lambda: {stub.pid for stub in stubs_of(server.pid)} - {dead.pid})
        back_s = time.monotonic()
        assert comes_true(lambda: right_since(load, back_s))
        found = figures_of("stub killed", load.close())
    assert (found.lost, found.wrong) == (0, 0)
    assert found.recovery_s > 0


def test_a_server_that_is_killed_under_load_leaves_no_process_and_no_memory(installation):
    """Its stubs may wait for ever for a lock that it held; they are seen off."""
    with serving() as server:
        directory, load = server.directory, Load(server.grpc, 8)
        stubs = [psutil.Process(stub.pid) for stub in stubs_of(server.pid)]
        time.sleep(1.0)
        psutil.Process(server.pid).send_signal(signal.SIGKILL)
        gone, alive = psutil.wait_procs(stubs, timeout=60)
        assert (len(gone), alive) == (len(stubs), [])
        load.close()
    assert processes_of(directory.run) == []
    assert shared_memory_of(directory.shm_prefix) == []
