"""Memory from /proc."""

import os
import subprocess
import sys
import time

import pytest
from benchmarks.harness.memory import MemoryWatch, memory_by_role, read_pss

ROLLUP = """\
5581e0000000-7ffd1a9c2000 ---p 00000000 00:00 0    [rollup]
Rss:              105796 kB
Pss:               51234 kB
Pss_Anon:          40960 kB
"""
MIB = 1 << 20


def test_the_share_of_a_process():
    """In bytes."""
    assert read_pss(ROLLUP) == 51234 * 1024


def test_processes_are_summed_by_role():
    """This one is none of a server's; one that is gone has nothing."""
    found = memory_by_role([os.getpid(), 2**22 + 1])
    assert found.keys() == {"other"}
    assert found["other"] > MIB


@pytest.fixture
def process(tmp_path):
    """A process that carries a server's folder, and takes 64 MiB and gives them back."""
    code = "import sys; b = bytearray(b'x' * (64 << 20)); print('full', flush=True); "
    code += "sys.stdin.readline(); del b; print('empty', flush=True); sys.stdin.readline()"
    started = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "GE_RUNTIME_DIR": str(tmp_path)},
    )
    yield started
    started.communicate()


def test_the_peak_is_kept(tmp_path, process):
    """What was given back before the end counts."""
    with MemoryWatch(tmp_path) as watch:
        assert process.stdout.readline() == "full\n"
        deadline = time.monotonic() + 60
        while not sum(watch.peak.values()) > 64 * MIB and time.monotonic() < deadline:
            time.sleep(0.01)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "empty\n"
    assert 64 * MIB < sum(watch.peak.values()) < 200 * MIB


def test_a_short_look_is_one(tmp_path, process):
    """What is there at the end is seen, however short it was."""
    assert process.stdout.readline() == "full\n"
    with MemoryWatch(tmp_path) as watch:
        pass
    assert sum(watch.peak.values()) > 64 * MIB
