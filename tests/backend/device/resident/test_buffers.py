"""What of a run lies in device buffers, as values."""

import pytest

from ge_backend.device.resident.buffers import (
    NOTHING_BOUND,
    Bound,
    BoundTensor,
    Copy,
    bound_graph,
    memory_of,
    merged,
)
from ge_backend.errors import GraphFailed
from ge_backend.tensors import DATA_TYPES

FP32 = DATA_TYPES["FP32"]
ONE, OTHER = object(), object()


def spans(*copies):
    return [(c.offset, c.place, c.nbytes) for c in merged(Copy(*copy) for copy in copies)]


def test_copies_that_go_on_from_each_other_are_one():
    """On both sides; one after another in memory is not enough if it is backwards."""
    side_by_side = (0, ONE, 640, 64), (64, ONE, 704, 64), (128, ONE, 768, 64)
    assert spans(*side_by_side) == [(0, 640, 192)]
    assert spans((0, ONE, 704, 64), (64, ONE, 640, 64)) == [(0, 704, 64), (64, 640, 64)]
    assert spans((0, ONE, 640, 64), (64, ONE, 640, 64)) == [(0, 640, 64), (64, 640, 64)]
    assert spans((0, ONE, 0, 64), (128, ONE, 64, 64)) == [(0, 0, 64), (128, 64, 64)]
    assert spans((0, ONE, 0, 64), (64, OTHER, 64, 64)) == [(0, 0, 64), (64, 64, 64)]
    assert spans() == []


def test_the_rest_goes_on_after_what_was_merged():
    """Nothing is lost at either end."""
    copies = (0, ONE, 640, 64), (64, ONE, 768, 64), (128, ONE, 832, 64), (192, ONE, 64, 64)
    assert spans(*copies) == [(0, 640, 64), (64, 768, 128), (192, 64, 64)]


def test_outputs_are_renamed_and_inputs_are_not():
    """A compiler renames the outputs alone."""
    h = BoundTensor(dtype=FP32, shape=(1, 16), copies=())
    following = BoundTensor(dtype=FP32, shape=(1, 16), copies=())
    bound = Bound(inputs={"h": h}, outputs={"next": following}, hidden=frozenset({"next"}))
    renamed = bound.renamed({"y": "node:0:y", "next": "node:1:next"})
    assert renamed.inputs == bound.inputs
    assert renamed.outputs == {"node:1:next": following}
    assert renamed.hidden == {"node:1:next"}


def test_an_output_that_is_not_as_it_was_to_be_is_refused():
    """By name, with both shapes."""
    bound = Bound(outputs={"y": BoundTensor(dtype=FP32, shape=(2, 3), copies=())})
    bound.check({"y": (2, 3), "z": (1,)})
    with pytest.raises(GraphFailed, match=r"'y'.*was to be \[2, 3\] and is \[2, 4\]"):
        bound.check({"y": (2, 4)})
    with pytest.raises(GraphFailed, match="no output 'y'"):
        bound.check({"z": (2, 3)})


def test_nothing_is_bound_in_most_runs():
    """And then there is nothing to check."""
    NOTHING_BOUND.check({})
    assert (NOTHING_BOUND.inputs, NOTHING_BOUND.outputs, NOTHING_BOUND.hidden) == (
        {},
        {},
        frozenset(),
    )


def test_the_bytes_of_an_input():
    """Of all of it, padding included."""
    assert BoundTensor(dtype=FP32, shape=(2, 3), copies=()).nbytes == 24


def test_a_graph_in_host_memory_has_no_buffers():
    """It says so where it is asked to run with some."""
    assert memory_of(object()) is None
    with pytest.raises(GraphFailed, match="no tensor of this graph can stay"):
        bound_graph(object())
