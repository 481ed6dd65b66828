"""What is told from a process that is only busy, and what is done with one that hangs."""

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from builders.null_models import comes_true, num_ours
from ge_backend.executor.client import watch
from ge_backend.executor.client.watch import (
    IDLE_S,
    SILENT_S,
    STARTING_IDLE_S,
    STOPPED_S,
    Silence,
    Watch,
    _Process,
    is_hung,
    still_runs,
)
from ge_backend.executor.protocol.outstanding import Outstanding, OutstandingView


@pytest.mark.parametrize(
    ("silent_s", "idle_s", "state", "hung"),
    [
        (0.2, 100.0, "S", False),  # it waits for work
        (STOPPED_S - 0.1, 0.0, "T", False),
        (STOPPED_S + 0.1, 0.0, "T", True),
        (STOPPED_S + 0.1, 0.0, "t", True),
        (STOPPED_S + 0.1, 0.0, "R", False),
        (IDLE_S + 1, 0.5, "R", False),  # a library computes and lets no thread run
        (IDLE_S + 1, IDLE_S + 1, "S", True),  # it waits for itself
        (SILENT_S + 1, 0.0, "R", True),  # it turns in circles
    ],
)
def test_a_process_is_hung_if_it_is_silent_and_does_nothing(silent_s, idle_s, state, hung):
    """Silence alone has to last long, because a library may hold every Python thread."""
    assert is_hung(silent_s=silent_s, idle_s=idle_s, state=state) == hung


@pytest.mark.parametrize(
    ("silent_s", "idle_s", "state", "hung"),
    [
        (STOPPED_S + 0.1, 0.0, "T", True),
        (60.0, 60.0, "S", False),  # a driver waits for its device
        (60.0, 60.0, "D", False),
        (STARTING_IDLE_S + 1, STARTING_IDLE_S + 1, "D", True),
        (STARTING_IDLE_S + 1, 0.5, "R", False),  # it imports
        (SILENT_S + 1, 0.0, "R", True),
    ],
)
def test_a_process_that_starts_may_wait_longer(silent_s, idle_s, state, hung):
    """It cannot beat yet, and a start is slow; but one that is stopped does not start."""
    given = {"silent_s": silent_s, "idle_s": idle_s, "state": state}
    assert is_hung(**given, most_idle_s=STARTING_IDLE_S) == hung


def test_reading_a_cold_disk_is_doing_something(monkeypatch):
    """Pages that a process waits for, and processor time, are what it does; other figures are not."""
    looking = _Process(1)
    figures = ["S", *map(str, range(4, 53))]
    idle = []
    for number in (3, 10, 12, 14, 15):  # state, pages that were there, pages read, times
        monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"1 (a b) {' '.join(figures)}")
        looking.look()
        time.sleep(0.01)
        figures[number - 3] = "R"
        looking.look()
        idle.append(looking.idle_s < 0.01)
    assert idle == [False, False, True, True, True]
    looking.close()


@pytest.fixture
def process():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def test_a_stopped_process_is_ended(process, monkeypatch):
    """Within the time that is given to stopped ones."""
    monkeypatch.setattr(watch, "PERIOD_S", 0.05)
    process.send_signal(signal.SIGSTOP)
    Watch(process.pid)
    assert comes_true(lambda: process.poll() == -signal.SIGKILL, STOPPED_S + 5)


class Beating(OutstandingView):
    """The page of a process that beats just before it is looked at."""

    def __init__(self, page):
        super().__init__(page.descriptor)
        self.page, self.looks = page, 0

    @property
    def beat_ns(self):
        self.page.beat()
        self.looks += 1
        return super().beat_ns


def test_a_process_that_beats_is_left_alone(process, monkeypatch):
    """Even one that is stopped: what beats is not what was looked at."""
    monkeypatch.setattr(watch, "PERIOD_S", 0.05)
    monkeypatch.setattr(watch, "STOPPED_S", 0.4)
    monkeypatch.setattr(watch, "QUIET_S", 0.1)
    # As with the module's own times a pause of this process alone is not taken for silence.
    monkeypatch.setattr(watch, "MAX_COUNTED_NS", 100_000_000)
    page = Outstanding()
    page.beat()
    looking, beating = Watch(process.pid), Beating(page)
    looking.follow(beating)
    process.send_signal(signal.SIGSTOP)
    assert comes_true(lambda: beating.looks >= 20)
    assert process.poll() is None
    looking.close()
    time.sleep(0.6)
    assert process.poll() is None  # nobody looks any more
    page.close()


@pytest.mark.parametrize(("holds_s", "most"), [(0.0, 10**9), (600.0, 4)])
def test_a_page_that_is_good_for_a_while_is_not_looked_at_before(
    process, monkeypatch, holds_s, most
):
    """As of an idle executor; but not for longer than `LONGEST_S`, whatever the page says."""
    monkeypatch.setattr(watch, "PERIOD_S", 0.02)
    monkeypatch.setattr(watch, "LONGEST_S", 0.3)
    page = Outstanding()
    page.beat(holds_s)
    looks = []

    class Looked(OutstandingView):
        @property
        def beat_ns(self):
            looks.append(1)
            return super().beat_ns

    looking = Watch(process.pid)
    looking.follow(Looked(page.descriptor))
    time.sleep(0.75)
    assert 2 <= len(looks) <= most
    if not holds_s:
        assert comes_true(lambda: len(looks) >= 20)
    looking.close()
    page.close()


def test_a_process_may_run_where_nobody_can_look(process):
    """Without a free descriptor; memory that it may write to is not given to another."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open("/dev/null", os.O_RDONLY)
    os.close(lowest)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
        assert still_runs(process.pid)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_that_was_killed_runs_no_more(process):
    """Whether or not somebody has asked how it ended; one that is stopped may go on."""
    process.send_signal(signal.SIGSTOP)
    assert still_runs(process.pid)
    process.kill()
    assert comes_true(lambda: not still_runs(process.pid))
    process.wait()
    assert not still_runs(process.pid)


def test_a_name_with_brackets_and_spaces_is_no_obstacle(tmp_path):
    """The kernel puts the program's name, whatever it is, among the fields."""
    program = tmp_path / ") Z (x"
    program.symlink_to("/bin/sleep")
    process = subprocess.Popen([program, "60"])
    try:
        assert still_runs(process.pid)
    finally:
        process.kill()
        process.wait()
    assert not still_runs(process.pid)


def test_a_watch_without_a_thread_leaves_no_descriptor(monkeypatch):
    """As where a process may have no more threads; whoever wanted it is told."""

    def refuse(_):
        raise RuntimeError("can't start new thread")

    before = num_ours()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError):
        Watch(os.getpid())
    assert num_ours() <= before


def test_time_in_which_nobody_looked_does_not_count():
    """As while a container is paused: its executor could not beat, and lives when it goes on."""
    second = 10**9
    silence = Silence(0)
    assert [silence.seconds(n * second // 4, 0) for n in (1, 2, 3)] == [0.25, 0.5, 0.75]
    assert silence.seconds(1000 * second, 0) == 1.25
    assert silence.seconds(1000 * second + 250_000_000, 1000 * second + 150_000_000) == 0.1
    late = [silence.seconds(1000 * second + n * second // 4, 1000 * second) for n in (2, 3, 4)]
    assert late == [0.35, 0.6, 0.85]
    assert silence.seconds(1001 * second, 1002 * second) == 0.0  # it is idle until then
