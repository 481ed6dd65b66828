"""What is served can be loaded again, whatever becomes of its files, and nothing of it stays."""

import functools
import logging
import shutil
from pathlib import Path

import pytest

from builders.null_models import num_within, write_null
from ge_backend.device.base import GraphSource
from ge_backend.device.files.model_file import model_files
from ge_backend.executor.process import kept_files
from ge_backend.executor.process.kept_files import KeptFiles, kept_root

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
