"""A checkpoint is loaded again as it was, from where it is then."""

import logging

import pytest

from ge_backend.errors import ModelError
from ge_backend.executor.client.served_files import ServedFiles
from ge_backend.model.files.model_file import stamp_of


class Copied:
    def __init__(self, folder):
        self.folder, self.closed = folder, 0

    def close(self):
        self.closed += 1


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_text("weights")
    return file


@pytest.fixture
def served(file, tmp_path):
    served = ServedFiles(tmp_path, lambda: [file], stamp_of([file]))
    served.copy = Copied(tmp_path / "kept")
    return served


def test_files_that_are_as_they_were_are_loaded_from_their_place(served, tmp_path):
    """The copy is for the case that something else lies there."""
    assert served.folder() == tmp_path


def test_files_that_were_replaced_are_loaded_from_their_copy(served, file, tmp_path, caplog):
    """The log says so."""
    file.write_text("garbage, and longer")
    with caplog.at_level(logging.WARNING):
        assert served.folder() == tmp_path / "kept"
    assert "loaded from their copy" in caplog.text


@pytest.mark.parametrize(
    "error",
    [FileNotFoundError("gone"), ModelError("not a checkpoint"), ValueError("no number")],
)
def test_files_that_make_no_checkpoint_any_more_are_replaced_ones(served, tmp_path, error):
    """Whatever reading them raises, what was loaded is served."""

    def files():
        raise error

    served.files = files
    assert served.folder() == tmp_path / "kept"


def test_without_a_copy_there_is_only_the_place(served, file, tmp_path):
    """Loading fails then, and says why, until the files can be loaded again."""
    copy = served.copy
    served.close()
    served.close()
    assert copy.closed == 1
    file.write_text("garbage, and longer")
    assert served.folder() == tmp_path
