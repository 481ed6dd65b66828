"""Copies of model files stay as they are, and say where they cannot be made."""

import os

import pytest

from ge_backend.errors import ModelError
from ge_backend.model.files import copying
from ge_backend.model.files.copying import copy_files


@pytest.fixture
def files(tmp_path):
    """A model file and weights in a folder beside it."""
    base = tmp_path / "model"
    (base / "weights").mkdir(parents=True)
    (base / "model.onnx").write_bytes(b"graph")
    (base / "weights" / "w.bin").write_bytes(b"weights")
    for file in (base / "model.onnx", base / "weights" / "w.bin"):
        os.utime(file, ns=(1_000_000_007, 1_000_000_007))
    return [base / "model.onnx", base / "weights" / "w.bin"]


def test_a_copy_outlives_that_its_files_are_written_over(files, tmp_path):
    """Files keep their places, bytes and times, whatever is written into those they came from."""
    copy_files(files, tmp_path / "model", tmp_path / "kept", 100)
    for file in files:
        file.write_bytes(b"garbage")
    kept = [tmp_path / "kept" / "model.onnx", tmp_path / "kept" / "weights" / "w.bin"]
    assert [file.read_bytes() for file in kept] == [b"graph", b"weights"]
    assert {file.stat().st_mtime_ns for file in kept} == {1_000_000_007}


def test_what_is_too_large_is_linked(files, tmp_path, monkeypatch):
    """A link takes no room, and outlives that another file takes the place."""
    monkeypatch.setattr(copying, "_shared", lambda *_: False)
    copy_files(files, tmp_path / "model", tmp_path / "kept", 11)
    kept = tmp_path / "kept" / "model.onnx"
    assert kept.samefile(files[0])
    (tmp_path / "new").write_bytes(b"garbage")
    (tmp_path / "new").rename(files[0])
    assert kept.read_bytes() == b"graph"


def test_all_of_a_model_counts(files, tmp_path, monkeypatch):
    """The limit is for the files together."""
    monkeypatch.setattr(copying, "_shared", lambda *_: False)
    copy_files(files, tmp_path / "model", tmp_path / "kept", 12)
    assert not (tmp_path / "kept" / "model.onnx").samefile(files[0])


def test_a_file_elsewhere_is_not_copied(files, tmp_path):
    """A copy has the places of its folder only."""
    with pytest.raises(ModelError, match="is not in the folder"):
        copy_files([files[0]], tmp_path / "model" / "weights", tmp_path / "kept", 100)
    odd = tmp_path / "model" / "weights" / ".." / "model.onnx"
    with pytest.raises(ModelError, match="is not in the folder"):
        copy_files([odd], tmp_path / "model", tmp_path / "kept", 100)
