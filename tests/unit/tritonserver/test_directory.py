import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ge_backend.tritonserver.directory import (
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


def test_making_one_sweeps_those_whose_owner_was_killed_and_keeps_living_ones():
    """Killing the owner releases the lock, whatever else it leaves."""
    code = (
        "import os, signal\n"
        "from ge_backend.tritonserver.directory import ServerDirectory\n"
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
