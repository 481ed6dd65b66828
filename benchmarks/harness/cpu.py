"""CPU time of processes, read from /proc: who used how much of the machine's cores."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

__all__ = ["busy_s", "machine_s", "role", "roles_of", "used_s"]

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")


def roles_of(pids: Iterable[int]) -> dict[int, str]:
    """Return the role of each process of a server that is still there, by process id."""
    lines = {pid: _command_line(pid) for pid in pids}
    return {pid: role(line) for pid, line in lines.items() if line}


def role(command_line: str) -> str:
    """Return `host`, `stub`, `executor` or `other` for a command line of the server's tree."""
    program = command_line.split(" ", 1)[0]
    if program.endswith("tritonserver"):
        return "host"
    if program.endswith("triton_python_backend_stub"):
        return "stub"
    return "executor" if "ge_backend.executor" in command_line else "other"


def used_s(roles: Mapping[int, str]) -> dict[str, float]:
    """Return the CPU seconds that these processes have used so far, summed by role."""
    sums = dict.fromkeys(roles.values(), 0.0)
    for pid, name in roles.items():
        fields = _stat(pid)
        if fields:
            sums[name] += (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    return sums


def machine_s() -> float:
    """Return the CPU seconds that all processes of this machine have used so far."""
    line = (PROC / "stat").read_text().split("\n", 1)[0]
    return busy_s(map(int, line.split()[1:]))


def busy_s(ticks: Iterable[int]) -> float:
    """Return the busy seconds in the `cpu` line of /proc/stat: all but idle, iowait and guests."""
    user, nice, system, _idle, _iowait, irq, softirq, *_ = ticks
    return (user + nice + system + irq + softirq) / TICKS_PER_S


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; nothing for a process that is gone."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return []
    return text.rsplit(")", 1)[1].split()


def _command_line(pid: int) -> str:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
