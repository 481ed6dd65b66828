"""The machine's memory."""

import ctypes
from pathlib import Path
from types import SimpleNamespace

import pytest

from ge_backend.device import host_memory as host_memory_module
from ge_backend.device.base import MemoryInfo
from ge_backend.device.host_memory import (
    check_room,
    give_back_freed,
    host_memory,
    read_memory,
)
from ge_backend.errors import OutOfMemory


def test_reads_meminfo():
    """Free memory is what the kernel calls available; figures are KiB."""
    memory = read_memory(
        "MemTotal: 2000 kB\nMemFree: 1 kB\nMemAvailable:   1500 kB\nHugePages: 0\n"
    )
    assert (memory.free_bytes, memory.total_bytes) == (1500 * 1024, 2000 * 1024)


def test_the_machine_has_memory():
    """Some of it is available."""
    memory = host_memory()
    assert 0 < memory.free_bytes <= memory.total_bytes


def test_what_does_not_fit_is_refused_before_it_is_allocated(monkeypatch):
    """With what it is, and what there is; small things are not asked about."""
    few = MemoryInfo(free_bytes=100 << 20, total_bytes=1 << 40)
    monkeypatch.setattr(host_memory_module, "host_memory", lambda: few)
    check_room(100 << 20, "a tensor")
    with pytest.raises(OutOfMemory, match="a tensor takes 200 MiB, and the machine has 100 MiB"):
        check_room(200 << 20, "a tensor")
    monkeypatch.setattr(host_memory_module, "host_memory", pytest.fail)
    check_room(1 << 20, "a tensor")


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_freed_memory_goes_back_to_the_system(monkeypatch):
    """Small pieces stay with the C library otherwise: the last one keeps all below it."""
    pieces = [bytearray(100_000) for _ in range(1000)]
    kept = pieces.pop()
    before = resident_bytes()
    pieces.clear()
    give_back_freed()
    assert resident_bytes() < before - 50_000_000
    assert len(kept) == 100_000
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace())
    give_back_freed()
