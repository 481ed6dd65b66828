"""An index or a length that the model does not take is the client's fault, and is named."""

import numpy as np
import pytest

from ge_backend.batching.blame import blamed
from ge_backend.batching.request import Request
from ge_backend.errors import GraphFailed, InvalidRequest
from ge_backend.layout.layout import InputLayout, Layout, OutputLayout
from ge_backend.tensors import DATA_TYPES

TENSOR = {"dtype": DATA_TYPES["INT64"], "dims": (-1,), "axes": (0,), "names": ("length",)}
LAYOUT = Layout(
    batched=True,
    axes=("length",),
    limits={},
    inputs=(
        InputLayout(name="ids", fill=0.0, made="", **TENSOR),
        InputLayout(name="mask", fill=0.0, made="mask", **TENSOR),
    ),
    outputs=(OutputLayout(name="y", **TENSOR),),
)
GATHER = (
    "Non-zero status code returned while running Gather node. Status Message: indices element out "
    "of data bounds, idx={} must be within the inclusive range [-{},{}]"
)
BROADCAST = "Attempting to broadcast an axis by a dimension other than 1. {} by {}"


def cause(text, ids, *, planned=False):
    array = np.array([ids])
    request = Request(index=0, rows=1, tensors={"ids": array}, sizes=(len(ids),))
    return blamed(GraphFailed(text), request, LAYOUT, planned=planned)


def test_an_index_is_found_in_its_input():
    """With its place, and what the model takes; whether or not the shape was prepared."""
    for planned in (False, True):
        error = cause(GATHER.format(999, 100, 99), [1, 2, 999], planned=planned)
        assert isinstance(error, InvalidRequest)
        assert str(error) == "input 'ids' holds 999 at [0, 2]; the model takes -100 to 99"


def test_an_index_that_no_client_sent_is_a_position():
    """The graph counts positions itself, and has no row for the last ones."""
    error = cause(GATHER.format(4, 4, 3), [1] * 6)
    assert isinstance(error, InvalidRequest)
    assert str(error) == "axis 'length' of 'ids' is 6 long; the model takes at most 4"


def test_bytes_that_are_no_text_are_the_clients():
    """The device names input and element; what it says is what to change."""
    said = "input 'x', element 1: invalid start byte; ONNX Runtime takes UTF-8 text only, so send …"
    error = cause(said, [1])
    assert isinstance(error, InvalidRequest)
    assert str(error) == said


@pytest.mark.parametrize("sizes", [(4, 6), (6, 4)])
def test_a_length_that_a_table_of_positions_lacks_is_told(sizes):
    """Whichever side of the operator it stands on."""
    error = cause(BROADCAST.format(*sizes), [1] * 6)
    assert str(error) == "axis 'length' of 'ids' is 6 long; the model takes at most 4"


def test_torch_names_no_index_so_the_inputs_ranges_are_told():
    """Whoever knows the vocabulary sees which it is."""
    error = cause("index out of range in self", [1, 2, 999])
    assert isinstance(error, InvalidRequest)
    assert "ids from 1 to 999" in str(error)


@pytest.mark.parametrize(
    ("text", "planned"),
    [
        ("something else", False),
        (GATHER.format(7, 4, 3), True),  # a value that the client did not send, of a short request
        (BROADCAST.format(4, 6), True),  # sizes of a prepared shape are not the client's
        (BROADCAST.format(9, 11), False),
    ],
)
def test_all_else_is_the_graphs_failure(text, planned):
    """Nobody is blamed without reason."""
    error = cause(text, [1, 2], planned=planned)
    assert isinstance(error, GraphFailed)
    assert str(error) == text
