"""The machine's memory."""

import ctypes
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from builders.control_groups import machine
from ge_backend.device.base import MemoryInfo
from ge_backend.device.machine import host_memory as host_memory_module
from ge_backend.device.machine.host_memory import (
    check_room,
    give_back_freed,
    host_memory,
    read_memory,
    small_page_zeros,
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


MEMINFO = "MemTotal: 4096 kB\nMemAvailable: 3072 kB\n"
K = 1024


def memory_in(root, cgroup, files):
    """Return what is read in such groups on a machine of 4 MiB with 3 left, in KiB."""
    machine(root, cgroup, files)
    (root / "proc/meminfo").write_text(MEMINFO)
    memory = host_memory(root)
    return memory.free_bytes // K, memory.total_bytes // K


@pytest.mark.parametrize(
    ("limit", "free", "total"),
    [
        (f"{2048 * K}\n", 2048 - 1000 + 24, 2048),
        (f"{500 * K}\n", 0, 500),
        (f"{9000 * K}\n", 3072, 4096),
        ("max\n", 3072, 4096),
        ("", 3072, 4096),
    ],
)
def test_a_container_has_what_its_limit_leaves(tmp_path, limit, free, total):
    """Its cached files are dropped for who needs the room; a limit above the machine adds none."""
    stat = f"anon 5\ninactive_file {24 * K}\n"
    files = {"memory.max": limit, "memory.current": f"{1000 * K}\n", "memory.stat": stat}
    assert memory_in(tmp_path, "0::/\n", files) == (free, total)


def test_the_group_that_has_least_left_counts(tmp_path):
    """An outer group may be fuller than an inner one."""
    files = {
        "a/memory.max": f"{3000 * K}",
        "a/memory.current": f"{2900 * K}",
        "a/b/memory.max": f"{2000 * K}",
        "a/b/memory.current": "0",
    }
    assert memory_in(tmp_path, "0::/a/b\n", files) == (100, 2000)


def test_groups_of_version_one_have_files_of_their_own(tmp_path):
    """Without a limit it is a number above all that a machine may have."""
    files = {
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "memory/memory.usage_in_bytes": f"{3000 * K}\n",
        "memory/box/memory.limit_in_bytes": f"{1024 * K}\n",
        "memory/box/memory.usage_in_bytes": f"{1000 * K}\n",
        "memory/box/memory.stat": f"inactive_file 7\ntotal_inactive_file {76 * K}\n",
        "cpu/memory.limit_in_bytes": "1\n",
    }
    cgroup = "4:memory:/box\n3:cpu:/\n0::/\n"
    assert memory_in(tmp_path, cgroup, files) == (100, 1024)


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


def test_zeros_take_memory_page_by_page():
    """A byte in each 2 MiB takes a page of 4 KiB; the system is told so (`nh`) where it can be."""
    nbytes, huge = 64 << 20, 2 << 20
    before = anonymous_kib()
    zeros = small_page_zeros(nbytes)
    zeros[::huge] = 1
    assert zeros.dtype == np.uint8
    assert (len(zeros), int(zeros.sum())) == (nbytes, nbytes // huge)
    assert anonymous_kib() - before < nbytes // 1024 // 16
    if Path("/sys/kernel/mm/transparent_hugepage").is_dir():
        assert "nh" in flags_at(zeros.ctypes.data)


def flags_at(address):
    """Return what the kernel notes of the mapping that an address lies in."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *others = line.split()
        if not first.endswith(":"):
            start, end = (int(part, 16) for part in first.split("-"))
            inside = start <= address < end
        elif inside and first == "VmFlags:":
            return others
    return []


def test_zeros_that_the_system_has_no_room_for_are_a_memory_error():
    """As numpy's are."""
    with pytest.raises(MemoryError, match="no memory for"):
        small_page_zeros(1 << 60)


def anonymous_kib():
    """Return the memory of this process that no file backs."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Anonymous:")).split()[1])
