"""CPU time from /proc."""

import os
import time

import pytest
from benchmarks.harness.cpu import busy_s, machine_s, role, roles_of, used_s


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/opt/tritonserver/bin/tritonserver --model-repository=/m", "host"),
        ("/tmp/b/python/triton_python_backend_stub /m/1/model.py", "stub"),
        ("/usr/bin/python3 -m ge_backend.executor.process.main --device=cpu", "executor"),
        ("/usr/bin/sleep 5", "other"),
    ],
)
def test_role_is_told_from_the_command_line(line, expected):
    """The server's processes are known by their commands."""
    assert role(line) == expected


def test_busy_time_leaves_out_idle_and_waiting():
    """Idle, iowait, steal and guest time are not work of this machine."""
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert busy_s([1, 2, 4, 1000, 1000, 8, 16, 1000, 1000, 1000]) == pytest.approx(31 * tick)


def test_work_is_seen():
    """A process that works is seen to use CPU time, and so is the machine."""
    roles = {os.getpid(): "client"}
    before, machine_before = used_s(roles)["client"], machine_s()
    deadline = time.process_time() + 0.1
    while time.process_time() < deadline:
        pass
    assert used_s(roles)["client"] - before >= 0.08
    assert machine_s() - machine_before >= 0.08


def test_processes_that_are_gone_are_left_out():
    """A process that has ended has no role and no time."""
    assert roles_of([2**22 + 1]) == {}
    assert used_s({2**22 + 1: "stub"}) == {"stub": 0.0}
