"""Headers are read without an engine, and a damaged file never gets as far as being mapped."""

import json
import struct

import numpy as np
import pytest
from safetensors.numpy import save_file

from ge_backend.errors import ModelError
from ge_backend.model.files.safetensors_header import StoredTensor, read_header


def test_a_file_of_the_library_is_read(tmp_path):
    """Names, types and shapes are those that were saved; metadata is no tensor."""
    path = tmp_path / "a.safetensors"
    save_file(
        {"w": np.ones((3, 2), np.float32), "none": np.ones((0, 4), np.int8)},
        path,
        metadata={"format": "pt"},
    )
    assert read_header(path) == {
        "w": StoredTensor(dtype="F32", shape=(3, 2), nbytes=24),
        "none": StoredTensor(dtype="I8", shape=(0, 4), nbytes=0),
    }


def entry(**changes):
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changes}


def write(path, header, data=b"\0" * 8, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"w": entry(dtype="F31")}, "dtype 'F31'"),
        ({"w": entry(shape=[-2])}, "shape"),
        ({"w": entry(shape=[2.0])}, "shape"),
        ({"w": entry(shape=[True, 2])}, "shape"),
        ({"w": entry(shape="ab")}, "shape"),
        ({"w": entry(shape=[2**40, 2**40])}, "takes .* bytes"),
        ({"w": entry(data_offsets=[0, 4])}, "takes 8 bytes"),
        ({"w": entry(data_offsets=[0])}, "offsets"),
        ({"w": entry(data_offsets=[4, 12])}, "begins at byte 4"),
        ({"w": entry(), "v": entry()}, "begins at byte 0, expected 8"),
        ({"w": 3}, "not a safetensors file"),
        ([], "not a safetensors file"),
        (b"{", "not a safetensors file"),
        (b"\xff\xfe", "not a safetensors file"),
        (b"[" * 100_000, "not a safetensors file"),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(tmp_path, header, reason):
    """Whatever the bytes are, the answer is an error that names the file."""
    path = tmp_path / "bad.safetensors"
    write(path, header)
    with pytest.raises(ModelError, match=f"bad.safetensors.*{reason}"):
        read_header(path)


@pytest.mark.parametrize("data", [b"", b"\0" * 7, b"\0" * 9])
def test_a_file_that_is_cut_short_or_too_long_is_refused(tmp_path, data):
    """A copy that broke off shows before a worker touches pages that are not there."""
    write(tmp_path / "cut.safetensors", {"w": entry()}, data)
    with pytest.raises(ModelError, match="cut short or damaged"):
        read_header(tmp_path / "cut.safetensors")


@pytest.mark.parametrize("length", [9, 10**9, 2**64 - 1])
def test_a_giant_header_is_refused_before_it_is_read(tmp_path, length):
    """The length is the file's word; memory is not taken on it."""
    write(tmp_path / "giant.safetensors", b"{}", b"", length)
    with pytest.raises(ModelError, match=f"{length} bytes"):
        read_header(tmp_path / "giant.safetensors")


def test_an_empty_file_is_refused(tmp_path):
    """There is no header at all."""
    (tmp_path / "empty.safetensors").touch()
    with pytest.raises(ModelError, match="not a safetensors file"):
        read_header(tmp_path / "empty.safetensors")


def test_a_link_to_nothing_is_named(tmp_path):
    """By its own name, as where a cache of downloads was emptied."""
    (tmp_path / "linked.safetensors").symlink_to(tmp_path / "gone")
    told = r"linked\.safetensors: the link cannot be followed: No such file or directory"
    with pytest.raises(ModelError, match=told):
        read_header(tmp_path / "linked.safetensors")


def test_a_file_that_is_not_there_is_named(tmp_path):
    """As one that is damaged."""
    with pytest.raises(ModelError, match=r"none\.safetensors: cannot be read: No such file"):
        read_header(tmp_path / "none.safetensors")
