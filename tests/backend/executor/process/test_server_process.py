"""The end of a process is noticed, also where the system has no descriptor for it."""

import os
import subprocess
import threading
import time

import pytest

from ge_backend.executor.process import server_process
from ge_backend.executor.process.server_process import name_of, wait_for_end


def unsupported(_):
    raise OSError(38, "Function not implemented")


@pytest.fixture(params=["descriptor", "poll", "missing"])
def way(request, monkeypatch):
    """Every way to wait: a process descriptor, or polling where there is none."""
    monkeypatch.setattr(server_process, "POLL_S", 0.02)
    if request.param == "poll":
        monkeypatch.setattr(os, "pidfd_open", unsupported)
    if request.param == "missing":
        monkeypatch.delattr(os, "pidfd_open")


@pytest.fixture
def child():
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def ended_within(pid, seconds):
    thread = threading.Thread(target=wait_for_end, args=(pid,), daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def test_waiting_lasts_as_long_as_the_process(way, child):
    """While the process lives the wait goes on; soon after its end it is over."""
    thread = threading.Thread(target=wait_for_end, args=(child.pid,), daemon=True)
    thread.start()
    time.sleep(0.15)
    assert thread.is_alive()
    child.kill()
    child.wait()
    thread.join(20)
    assert not thread.is_alive()


def test_waiting_may_have_an_end_of_its_own(way, child):
    """Whoever waits asks then what has become of the process."""
    begin = time.monotonic()
    wait_for_end(child.pid, 0.2)
    assert time.monotonic() - begin >= 0.2
    assert child.poll() is None


def test_a_zombie_has_ended(way, child):
    """A killed process that nobody has reaped yet counts as ended."""
    child.kill()
    assert ended_within(child.pid, 20)


def test_there_is_no_waiting_for_a_process_that_is_gone(way, child):
    """A process that was reaped before is not waited for."""
    child.kill()
    child.wait()
    assert ended_within(child.pid, 20)


def test_a_process_has_another_name_in_another_container(monkeypatch, tmp_path):
    """Containers may share a folder and have processes of the same number."""
    here = name_of(7)
    assert here == name_of(7) != name_of(8)
    (tmp_path / "pid").touch()
    monkeypatch.setattr(server_process, "PROCESS_NAMESPACE", tmp_path / "pid")
    assert name_of(7).partition("-")[0] == "7"
    assert name_of(7) != here
    monkeypatch.setattr(server_process, "PROCESS_NAMESPACE", tmp_path / "none")
    assert name_of(7) == "7"
