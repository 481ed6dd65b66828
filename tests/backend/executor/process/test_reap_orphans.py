"""Stubs that do not follow their server are ended, and nothing else is; ends are noticed."""

import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest

from builders.null_models import comes_true
from ge_backend.executor.process import reap_orphans
from ge_backend.executor.process.reap_orphans import (
    birth_of,
    main,
    region_of,
    server_of,
    stubs_of,
    wait_for_end,
)

# No process has this number. Source: proc(5), /proc/sys/kernel/pid_max: at most 2^22.
SERVER = 2**22 + 2


@pytest.fixture
def stub(tmp_path):
    """A process whose command line is that of Triton's stub, and its shared memory."""
    program = tmp_path / "triton_python_backend_stub"
    shutil.copy("/bin/sh", program)
    region = reap_orphans.SHARED_MEMORY / f"ge-test-{uuid.uuid4()}"
    region.touch()
    words = [program, "-c", f"sleep 60; :  {region.name}", "1048576", "1048576", str(SERVER)]
    process = subprocess.Popen(words)
    assert comes_true(lambda: region_of(process.pid) is not None)
    yield process, region
    process.kill()
    process.wait()
    region.unlink(missing_ok=True)


@pytest.fixture
def kept(tmp_path):
    """The folder of what is kept of model files."""
    folder = tmp_path / "run" / "kept-1"
    folder.mkdir(parents=True)
    return folder


def test_a_birth_tells_processes_apart():
    """This process has one, and one that ended has none."""
    assert birth_of(os.getpid()) == birth_of(os.getpid()) != ""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert birth_of(process.pid) == ""


def test_only_stubs_have_a_region(stub):
    """It is named by the second argument; another program's arguments mean nothing."""
    process, _ = stub
    assert comes_true(lambda: region_of(process.pid))  # for a moment exec has no command line
    assert region_of(process.pid).parent == reap_orphans.SHARED_MEMORY
    assert region_of(os.getpid()) is None
    assert region_of(2**22 + 1) is None


def test_a_servers_stubs_are_found_by_its_number(stub, tmp_path, monkeypatch):
    """Whether they have connected or not; another container's server may have the same one."""
    process, _ = stub
    # Until the shell's own child is another program it has the same words.
    assert comes_true(lambda: stubs_of(SERVER) == [process.pid])
    assert stubs_of(SERVER + 1) == []
    other = tmp_path / "proc"
    for pid, inside in (("self", "pid:[1]"), (str(process.pid), "pid:[2]")):
        (other / pid / "ns").mkdir(parents=True)
        (other / pid / "ns" / "pid").symlink_to(inside)
    line = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    (other / str(process.pid) / "cmdline").write_bytes(line)
    monkeypatch.setattr(reap_orphans, "PROC", other)
    assert stubs_of(SERVER) == []


def test_a_stub_that_stays_is_ended_and_its_memory_removed(stub, kept, monkeypatch):
    """After the time that it has for ending by itself."""
    process, region = stub
    monkeypatch.setattr(reap_orphans, "GRACE_S", 0.3)
    monkeypatch.setattr(reap_orphans, "region_of", lambda pid: region)
    main([str(kept), f"{process.pid}:{birth_of(process.pid)}"])
    assert process.wait(20) == -9
    assert not region.exists()


def test_what_was_kept_of_model_files_is_removed(kept):
    """And the folder around it, if nobody else has something there."""
    (kept / "model.onnx").write_bytes(b"weights")
    main([str(kept)])
    assert not kept.parent.exists()


def test_a_process_that_is_no_stub_or_another_one_is_left_alone(stub, kept, monkeypatch):
    """A reused id has another birth; what is not Triton's stub is nobody's to end."""
    process, region = stub
    monkeypatch.setattr(reap_orphans, "GRACE_S", 0.1)
    main([str(kept), f"{process.pid}:1"])
    assert process.poll() is None
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    main([str(kept), f"{other.pid}:{birth_of(other.pid)}"])
    assert other.poll() is None
    other.kill()
    other.wait()
    assert region.exists()


def test_it_runs_as_a_file_of_its_own(kept):
    """The executor becomes it, without the package on the path."""
    program = Path(reap_orphans.__file__)
    done = subprocess.run(
        [sys.executable, "-I", "-S", program, kept, "1:"], timeout=20, check=False
    )
    assert done.returncode == 0


def test_stubs_of_a_server_that_has_ended_are_ended(stub, monkeypatch):
    """Where nothing else is known of them: a stub names its server, and nothing else does."""
    monkeypatch.setattr(reap_orphans, "GRACE_S", 0.1)
    process, _ = stub
    assert server_of(process.pid) == SERVER
    assert server_of(os.getpid()) == 0
    main([str(SERVER)])
    assert process.wait(10) == -9


def test_stubs_of_a_server_that_runs_are_left(stub, child, monkeypatch):
    """Until it ends."""
    monkeypatch.setattr(reap_orphans, "GRACE_S", 0.1)
    monkeypatch.setattr(reap_orphans, "stubs_of", lambda server: [stub[0].pid])
    watching = threading.Thread(target=main, args=([str(child.pid)],), daemon=True)
    watching.start()
    watching.join(0.5)
    assert watching.is_alive()
    assert stub[0].poll() is None
    child.kill()
    child.wait()
    watching.join(20)
    assert stub[0].wait(20) == -9


def unsupported(_):
    raise OSError(38, "Function not implemented")


@pytest.fixture(params=["descriptor", "poll", "missing"])
def way(request, monkeypatch):
    """Every way to wait: a process descriptor, or polling where there is none."""
    monkeypatch.setattr(reap_orphans, "WATCH_S", 0.02)
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
