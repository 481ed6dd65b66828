"""What is kept of a sequence: initial values and sizes."""

import numpy as np
import pytest

from ge_backend.device.resident.state_layout import initial_value, row_bytes
from ge_backend.errors import ModelError
from ge_backend.model.config.sequence_batching import State
from ge_backend.tensors import DATA_TYPES, encode_bytes


def state(dims=(2,), dtype="FP32", file=""):
    return State(
        input="h",
        output="h_next",
        dtype=DATA_TYPES[dtype],
        dims=dims,
        initial_dims=tuple(max(d, 0) for d in dims),
        initial_file=file,
    )


@pytest.mark.parametrize(
    ("dims", "dtype", "nbytes"),
    [((2, 3), "FP32", 24), ((), "INT64", 8), ((4, -1), "FP32", 0), ((2,), "BYTES", 0)],
)
def test_a_row_has_a_size_where_it_never_changes(dims, dtype, nbytes):
    """None where it grows, or is made of texts."""
    assert row_bytes(state(dims, dtype)) == nbytes


def test_strings_can_be_states(tmp_path):
    """Empty ones at first, or Triton's serialisation from a file."""
    texts = np.array([b"a", b"bc"], dtype=object)
    (tmp_path / "texts").write_bytes(encode_bytes(texts))
    assert initial_value(state(dtype="BYTES")).tolist() == [b"", b""]
    read = initial_value(state(dtype="BYTES", file=str(tmp_path / "texts")))
    assert read.tolist() == [b"a", b"bc"]


@pytest.mark.parametrize("content", [None, b"abc", b"0123456789ab"])
def test_an_initial_value_of_another_size_is_refused(tmp_path, content):
    """The error names the state, the file and what it should hold."""
    path = tmp_path / "first"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError, match=r"state 'h'.*first.*FP32 \[2\]"):
        initial_value(state(file=str(path)))


def test_an_initial_text_that_is_none_is_loaded_with_a_warning(tmp_path, caplog):
    """As by Triton, whose tests have such a file for a state of texts; sequences begin with empty ones."""
    (tmp_path / "first").write_bytes(b"\x64\0\0\0")
    assert initial_value(state((2,), "BYTES", str(tmp_path / "first"))).tolist() == [b"", b""]
    assert "first, is not BYTES [2]: sequences begin with empty texts" in caplog.text
