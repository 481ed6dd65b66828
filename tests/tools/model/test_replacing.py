"""Writing a file whole."""

import shutil

import pytest

from ge_tools.model.replacing import replacing


def test_a_file_is_replaced_at_the_end(tmp_path):
    """Until then it is as it was; its permissions stay."""
    file = tmp_path / "model.om"
    file.write_text("before")
    file.chmod(0o640)
    with replacing(file) as draft:
        draft.write_text("after")
        assert file.read_text() == "before"
        assert draft.parent == tmp_path
    assert file.read_text() == "after"
    assert file.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_was_not_there(tmp_path):
    """It is now."""
    with replacing(tmp_path / "new") as draft:
        draft.write_text("first")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["first"]


def test_an_error_leaves_it_as_it_was(tmp_path):
    """And no draft."""
    file = tmp_path / "model.om"
    file.write_text("before")
    with pytest.raises(OSError, match="No such file"), replacing(file) as draft:
        shutil.copyfile(tmp_path / "nowhere", draft)
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]
