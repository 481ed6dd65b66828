"""Signatures written as JSON."""

import pytest

from ge_backend.errors import ModelError
from ge_backend.model.files.signature_file import read_signature

X = {"name": "x", "dtype": "TYPE_BF16", "dims": ["batch", 4, -1]}


def test_reads_names_types_and_dimensions():
    """A string is a named free axis, -1 a free one without a name."""
    given = {"inputs": [X], "outputs": [], "axis_limits": {"batch": 8}, "more": "is ignored"}
    given["axis_least"] = {"length": 4}
    signature = read_signature(given, "file")
    spec = signature.input("x")
    assert (spec.dtype.name, spec.dims, spec.axes) == ("BF16", (-1, 4, -1), ("batch", "", ""))
    assert signature.axis_limits == {"batch": 8}
    assert signature.axis_least == {"length": 4}


def test_reads_fills_and_lengths():
    """What an output is filled with, and which one tells its rows' sizes."""
    given = {"inputs": [], "outputs": [{**X, "fill": 1}], "lengths": {"batch": "n"}}
    signature = read_signature(given, "file")
    assert signature.output("x").fill == 1.0
    assert signature.lengths == {"batch": "n"}
    assert read_signature({"inputs": [X], "outputs": []}, "file").input("x").fill == 0.0


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"inputs": [X]},
        {"inputs": [{"name": "x", "dtype": "FP32"}], "outputs": []},
        {"inputs": [{**X, "dtype": "FP8"}], "outputs": []},
        {"inputs": [{**X, "dims": 4}], "outputs": []},
        {"inputs": [{**X, "dims": [None]}], "outputs": []},
        {"inputs": ["x"], "outputs": []},
        {"inputs": [], "outputs": [], "axis_limits": [1]},
        [],
    ],
)
def test_what_is_no_signature_is_refused(given):
    """Anything malformed is a ModelError that names the file and the expected form."""
    with pytest.raises(ModelError, match=r"model\.null: not a signature .*expected"):
        read_signature(given, "model.null")
