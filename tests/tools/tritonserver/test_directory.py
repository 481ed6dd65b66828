import errno
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest

from builders.null_models import comes_true
from ge_backend.errors import ServerError
from ge_tools.tritonserver import directory as directory_module
from ge_tools.tritonserver.directory import (
    PREFIX,
    ServerDirectory,
    processes_of,
    shared_memory_of,
)


@pytest.fixture(autouse=True)
def temporary(monkeypatch):
    """A temporary folder of our own with a short name, so that nothing else is swept."""
    with tempfile.TemporaryDirectory(prefix="ge-t-", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_it_is_private_and_has_a_folder_for_each_use(temporary):
    """Only the owner may enter; the working directory is empty."""
    directory = ServerDirectory.make()

    assert directory.path.stat().st_mode & 0o777 == 0o700
    assert directory.path.parent == temporary
    assert all(path.is_dir() for path in (directory.backends, directory.cwd, directory.run))
    assert list(directory.cwd.iterdir()) == []
    directory.remove()
    assert not directory.path.exists()


@pytest.mark.skipif(shutil.which("systemd-tmpfiles") is None, reason="no systemd-tmpfiles")
def test_what_removes_old_files_from_temporary_folders_leaves_it_alone(temporary):
    """A server may run for longer than files live there, and then has to start another stub."""
    directory = ServerDirectory.make()
    stub = directory.backends / "stub"
    old = temporary / "old"
    for path in (stub, old):
        path.touch()
    rules = temporary / "rules.conf"
    rules.write_text(f"d {temporary} 0700 - - 1s")
    removed = ["systemd-tmpfiles", "--clean", str(rules)]
    assert comes_true(lambda: subprocess.run(removed, check=False) and not old.exists())
    assert stub.exists()
    directory.remove()


def test_remove_takes_the_servers_own_shared_memory_and_no_other():
    """A region is ours by its prefix, which is the folder's name."""
    directory, other = ServerDirectory.make(), ServerDirectory.make()
    regions = [Path("/dev/shm", f"{d.shm_prefix}region") for d in (directory, other)]
    for region in regions:
        region.touch()

    directory.remove()
    assert [region.exists() for region in regions] == [False, True]
    assert shared_memory_of(other.shm_prefix) == [regions[1]]
    other.remove()


@pytest.mark.parametrize("name", ["x" * 60, "one two", "a&b", "mod\xe8le"])
def test_a_temporary_folder_that_a_server_cannot_use_is_left_for_tmp(monkeypatch, temporary, name):
    """Sockets have short names; the host's shell and its stub's Python take not every letter."""
    (temporary / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / name))
    monkeypatch.setattr(directory_module, "_sweep", lambda _: None)  # what others have in /tmp
    directory = ServerDirectory.make()
    assert directory.path.parent == Path("/tmp")
    directory.remove()


def test_a_temporary_folder_that_nothing_may_be_run_from_is_refused(monkeypatch, temporary):
    """As a tmpfs of Docker's is by default; the stub would never start, without a word."""
    mounted = SimpleNamespace(f_flag=os.ST_NOEXEC | os.ST_NOSUID)
    monkeypatch.setattr(directory_module.os, "statvfs", lambda path: mounted)
    with pytest.raises(
        ServerError, match=rf"{temporary}.* is mounted noexec.*TMPDIR names another"
    ):
        ServerDirectory.make()
    assert list(temporary.iterdir()) == []


def test_one_that_cannot_be_made_is_not_left_half_made(monkeypatch, temporary):
    """A full disk, for one; without its lock nobody would sweep it."""

    def full(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(directory_module, "_locked", full)
    with pytest.raises(OSError, match="No space left"):
        ServerDirectory.make()
    assert list(temporary.iterdir()) == []


def test_making_one_sweeps_those_whose_owner_was_killed_and_keeps_living_ones():
    """Killing the owner releases the lock, whatever else it leaves."""
    code = (
        "import os, signal\n"
        "from ge_tools.tritonserver.directory import ServerDirectory\n"
        "directory = ServerDirectory.make()\n"
        "print(directory.path, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "TMPDIR": tempfile.gettempdir()}
    living = ServerDirectory.make()
    killed = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, env=environment
    )
    path = Path(killed.stdout.strip())
    region = Path("/dev/shm", f"{path.name}_region")
    region.touch()
    assert path.is_dir()

    fresh = ServerDirectory.make()
    assert not path.exists()
    assert not region.exists()
    assert living.path.is_dir()
    fresh.remove()
    living.remove()


@pytest.fixture
def memory(monkeypatch, tmp_path):
    """Shared memory of our own: servers that start beside these tests sweep theirs."""
    monkeypatch.setattr(directory_module, "SHARED_MEMORY", tmp_path)
    return tmp_path


@pytest.fixture
def stray(memory):
    """A region of a server whose folder is gone."""
    region = memory / f"{PREFIX}{uuid.uuid4().hex[:8]}_region"
    region.touch()
    return region


def test_regions_without_a_folder_are_swept(stray):
    """What a stub made after all else of its dead server was removed."""
    ServerDirectory.make().remove()
    assert not stray.exists()


def test_regions_that_a_process_has_are_not_swept(stray):
    """Whoever has one mapped, or was told of it, lives."""
    stray.write_bytes(b"1" * 4096)
    code = (
        "import mmap, os, sys\n"
        "memory = mmap.mmap(os.open(sys.stdin.readline().strip(), os.O_RDWR), 4096)\n"
        "print(flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    process.stdin.write(f"{stray}\n".encode())
    process.stdin.flush()
    process.stdout.readline()
    ServerDirectory.make().remove()
    assert stray.exists()
    process.communicate()
    ServerDirectory.make().remove()
    assert not stray.exists()


def test_regions_of_a_living_server_stay_when_its_folder_is_gone(temporary):
    """Its lock lies beside them, for containers that share shared memory and no folders."""
    living = ServerDirectory.make()
    region = Path("/dev/shm", f"{living.shm_prefix}region")
    region.touch()
    shutil.rmtree(living.path)
    ServerDirectory.make().remove()
    assert region.exists()
    for lock in living.locks:
        os.close(lock)
    ServerDirectory.make().remove()
    assert list(Path("/dev/shm").glob(f"{living.path.name}*")) == []


def test_regions_are_left_to_the_folder_that_is_there(memory):
    """A folder that is locked is a living server's, wherever the lock beside the regions is."""
    living = ServerDirectory.make()
    region = memory / f"{living.shm_prefix}region"
    region.touch()
    (memory / f"{living.path.name}.lock").unlink()
    ServerDirectory.make().remove()
    assert region.exists()
    living.remove()


def test_a_folder_being_made_is_not_swept(temporary):
    """It has no lock yet, so nobody can tell that it is stale."""
    unfinished = temporary / f"{PREFIX}new"
    unfinished.mkdir()

    ServerDirectory.make().remove()
    assert unfinished.is_dir()


def test_a_temporary_folder_with_a_long_name_is_not_used(temporary, monkeypatch):
    """The address of an AF_UNIX socket below it would not fit."""
    deep = temporary / ("x" * 90)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))

    directory = ServerDirectory.make()
    assert directory.path.parent == Path("/tmp")
    directory.remove()


def test_processes_are_found_by_the_mark_in_their_environment(tmp_path):
    """A child in a session of its own is found as well; a process without the mark is not."""
    code = "import sys; print(flush=True); sys.stdin.read()"
    environments = [{"GE_RUNTIME_DIR": str(tmp_path)}, {"GE_RUNTIME_DIR": f"{tmp_path}-other"}]
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        for environment in environments
    ]
    for child in children:
        child.stdout.readline()

    found = processes_of(tmp_path)
    for child in children:
        child.communicate()
    assert found == [children[0].pid]
    assert processes_of(tmp_path) == []
