"""What is served can be loaded again, whatever becomes of its files, and nothing of it stays."""

import contextlib
import functools
import logging
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from builders.null_models import num_within, write_null
from ge_backend.device.base import GraphSource
from ge_backend.executor.process import kept_files
from ge_backend.executor.process.kept_files import KeptFiles, kept_root
from ge_backend.model.files.model_file import model_files

PLENTY = 1 << 20


@pytest.fixture
def source(tmp_path):
    (tmp_path / "model").mkdir()
    return write_null(tmp_path / "model" / "model.null")


@pytest.fixture
def root(tmp_path):
    return kept_root(tmp_path / "run", 7)


def keep(source, root):
    """Return a copy of the files of a source."""
    path = Path(source.path)
    files = functools.partial(model_files, path)
    return KeptFiles.of(path.parent, files, source.stamp, root=root, most_bytes=PLENTY)


def copied(kept, source):
    """Return the file that is loaded in place of the source's."""
    return kept.folder / Path(source.path).name


def test_a_copy_is_the_source_elsewhere(source, root):
    """It has the same bytes and time, and stays when garbage takes the file's place."""
    kept = keep(source, root)
    file, copy = Path(source.path), copied(kept, source)
    before = file.read_bytes()
    assert copy.stat().st_mtime_ns == file.stat().st_mtime_ns
    file.write_text("garbage")
    assert not source.is_current()
    assert copy.read_bytes() == before
    kept.close()


def test_a_link_to_a_file_without_a_name_is_copied_under_its_own(source, root):
    """As a cache of downloads has it; the copy is a file that holds what the link led to."""
    path = Path(source.path)
    blob = path.rename(path.parent.parent / "0a1b2c")
    path.symlink_to(blob)
    linked = GraphSource.of(path)
    kept = keep(linked, root)
    copy = copied(kept, linked)
    assert (copy.name, copy.is_symlink(), copy.read_text()) == (path.name, False, blob.read_text())
    kept.close()


def test_all_who_serve_the_same_share_one_copy(source, root):
    """It goes with the last of them, and takes its lock, its folder and its descriptor along."""
    first, second = (keep(source, root) for _ in range(2))
    assert first.folder == second.folder
    assert num_within(root.parent) == 2
    first.close()
    assert copied(second, source).is_file()
    second.close()
    assert not root.exists()
    assert num_within(root.parent) == 0


def test_a_changed_file_is_another_copy(source, root, tmp_path):
    """Versions that are served side by side, while one is loaded, are kept side by side."""
    old, before = keep(source, root), Path(source.path).read_bytes()
    new = keep(write_null(tmp_path / "model" / "model.null", cost_ms={"*": 1}), root)
    assert old.folder != new.folder
    assert copied(old, source).read_bytes() == before
    old.close()
    new.close()


def test_what_has_changed_since_it_was_loaded_is_not_kept(source, root, caplog):
    """The copy would be of something else; that it is missing is said."""
    Path(source.path).write_text("garbage, and longer than it was")
    with caplog.at_level(logging.WARNING):
        assert keep(source, root) is None
    assert "changed since they were loaded" in caplog.text
    assert [path.name for path in root.iterdir() if path.is_dir()] == []


def test_a_full_disk_is_no_reason_not_to_serve(source, root, monkeypatch, caplog):
    """Nothing is kept then, nothing half-made stays, and the log says what that means."""

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept_files, "copy_files", full)
    assert keep(source, root) is None
    assert "No space left on device" in caplog.text
    assert [path for path in root.iterdir() if path.is_dir()] == []


def test_a_copy_whose_holders_were_killed_is_used_by_the_next(source, root):
    """The kernel has released their locks; the copy is complete, or it would not be there."""
    first = keep(source, root)
    shutil.copytree(first.folder, first.folder.with_suffix(".saved"))
    first.close()
    root.mkdir(parents=True, exist_ok=True)
    first.folder.with_suffix(".saved").rename(first.folder)
    second = keep(source, root)
    assert copied(second, source).read_bytes() == Path(source.path).read_bytes()
    second.close()
    assert not root.exists()


class Killed(BaseException):
    """Stands for SIGKILL: nothing is done about it."""


def test_a_copy_whose_last_holder_was_killed_while_removing_it_is_made_anew(
    source, root, monkeypatch
):
    """What is left of it is never taken for the whole, and goes with the next one."""
    first = keep(source, root)
    copy = copied(first, source)
    copy.with_name("more").write_text("not removed any more")

    def killed(folder, **_):
        for file in folder.glob(copy.name):
            file.unlink()
            raise Killed

    with monkeypatch.context() as midway:
        midway.setattr(shutil, "rmtree", killed)
        with pytest.raises(Killed):
            first.close()
    second = keep(source, root)
    assert copied(second, source).read_bytes() == Path(source.path).read_bytes()
    assert [path for path in root.iterdir() if path.is_dir()] == [second.folder]
    second.close()
    assert not root.exists()


@pytest.fixture
def abandoned(tmp_path, source):
    """A function that keeps files as a server with this id did, under a run folder of its own."""

    def keep_for(pid):
        root = kept_root(tmp_path / f"ge-backend-{os.getuid()}-{pid}", pid)
        kept = keep(source, root)
        held.append(kept.lock)
        return kept

    held = []
    yield keep_for
    for lock in held:
        with contextlib.suppress(OSError):
            os.close(lock)


@pytest.fixture
def begin(tmp_path, source):
    """A function that keeps the first files of another server, and lets go of them again."""
    runs = tmp_path / f"ge-backend-{os.getuid()}-{os.getpid()}"
    return lambda: keep(source, kept_root(runs, os.getpid())).close()


@pytest.fixture
def ended():
    """The id of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_the_next_server_removes_what_was_left(abandoned, begin, ended):
    """Where all of a server was killed nobody was there to do so."""
    kept = abandoned(ended)
    os.close(kept.lock)
    half = kept.folder.with_suffix(".part")
    shutil.copytree(kept.folder, half)
    begin()
    assert not kept.folder.parent.parent.exists()


def test_beside_it_in_a_folder_of_the_users(root, source, ended):
    """`GE_RUNTIME_DIR` is one for all servers."""
    kept = keep(source, kept_root(root.parent, ended))
    os.close(kept.lock)
    keep(source, root).close()
    assert not kept.folder.parent.exists()


def test_what_a_stub_holds_stays_when_its_server_has_ended(abandoned, begin, ended):
    """It may be about to end in order, and removes it then."""
    kept = abandoned(ended)
    begin()
    assert kept.folder.is_dir()
    kept.close()
    assert not kept.folder.exists()


def test_what_a_living_server_has_stays(abandoned, begin):
    """It may be between two of its stubs."""
    kept = abandoned(os.getppid())
    os.close(kept.lock)
    begin()
    assert kept.folder.is_dir()


def test_of_another_container_nothing_is_removed(abandoned, begin, ended):
    """Its processes cannot be seen from here."""
    kept = abandoned(ended)
    os.close(kept.lock)
    elsewhere = kept.folder.parent.rename(kept.folder.parent.parent / f"kept-{ended}-1")
    begin()
    assert (elsewhere / kept.folder.name).is_dir()


@pytest.mark.parametrize("how", ["a link", "open to others"])
def test_what_others_may_have_put_there_is_left_alone(tmp_path, abandoned, begin, ended, how):
    """The name of a folder under /tmp can be guessed."""
    kept = abandoned(ended)
    os.close(kept.lock)
    runs = kept.folder.parent.parent
    if how == "a link":
        runs.rename(tmp_path / "theirs")
        runs.symlink_to(tmp_path / "theirs")
    else:
        runs.chmod(0o777)
    begin()
    assert kept.folder.is_dir()
