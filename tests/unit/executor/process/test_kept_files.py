"""What is served can be loaded again, whatever becomes of its files, and nothing of it stays."""

import logging
import shutil
from pathlib import Path

import pytest

from builders.null_models import num_descriptors, write_null
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


def test_a_copy_is_the_source_elsewhere(source, root):
    """It has the same stamp, and stays when garbage takes the file's place."""
    kept = KeptFiles.of(source, root, PLENTY)
    before = Path(source.path).read_text()
    assert (kept.source.stamp, kept.source.is_current()) == (source.stamp, True)
    Path(source.path).write_text("garbage")
    assert Path(kept.source.path).read_text() == before
    assert not source.is_current()
    assert kept.source.is_current()
    kept.close()


def test_all_who_serve_the_same_share_one_copy(source, root):
    """It goes with the last of them, and takes its lock, its folder and its descriptor along."""
    descriptors = num_descriptors()
    first, second = (KeptFiles.of(source, root, PLENTY) for _ in range(2))
    assert first.source == second.source
    first.close()
    assert second.source.is_current()
    second.close()
    assert not root.exists()
    assert num_descriptors() == descriptors


def test_a_changed_file_is_another_copy(source, root, tmp_path):
    """Versions that are served side by side, while one is loaded, are kept side by side."""
    old = KeptFiles.of(source, root, PLENTY)
    new = KeptFiles.of(
        write_null(tmp_path / "model" / "model.null", cost_ms={"*": 1}), root, PLENTY
    )
    assert old.source.path != new.source.path
    assert old.source.is_current()
    old.close()
    new.close()


def test_what_has_changed_since_it_was_loaded_is_not_kept(source, root, caplog):
    """The copy would be of something else; that it is missing is said."""
    Path(source.path).write_text("garbage, and longer than it was")
    with caplog.at_level(logging.WARNING):
        assert KeptFiles.of(source, root, PLENTY) is None
    assert "changed since they were loaded" in caplog.text
    assert [path.name for path in root.iterdir() if path.is_dir()] == []


def test_a_full_disk_is_no_reason_not_to_serve(source, root, monkeypatch, caplog):
    """Nothing is kept then, nothing half-made stays, and the log says what that means."""

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept_files, "copy_files", full)
    assert KeptFiles.of(source, root, PLENTY) is None
    assert "No space left on device" in caplog.text
    assert [path for path in root.iterdir() if path.is_dir()] == []


def test_a_copy_whose_holders_were_killed_is_used_by_the_next(source, root):
    """The kernel has released their locks; the copy is complete, or it would not be there."""
    first = KeptFiles.of(source, root, PLENTY)
    shutil.copytree(first.folder, first.folder.with_suffix(".saved"))
    first.close()
    root.mkdir(parents=True, exist_ok=True)
    first.folder.with_suffix(".saved").rename(first.folder)
    second = KeptFiles.of(source, root, PLENTY)
    assert second.source.is_current()
    second.close()
    assert not root.exists()
