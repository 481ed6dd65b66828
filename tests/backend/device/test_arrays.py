"""Arrays of a run: what is refused of them, and where results are put."""

import numpy as np
import pytest

from ge_backend.device.arrays import (
    bytes_columns,
    check_indices,
    check_names,
    into_place,
    shapes_key,
    shapes_of,
    wrong_input,
)
from ge_backend.errors import GraphFailed
from ge_backend.tensors import DATA_TYPES, Signature, TensorSpec

TEXT = TensorSpec(name="text", dtype=DATA_TYPES["BYTES"], dims=(-1, 1), axes=("batch", ""))


def test_shapes_of_arrays():
    """Names and shapes, nothing else."""
    assert shapes_of({"x": np.zeros((2, 3)), "y": np.zeros(())}) == {"x": (2, 3), "y": ()}


def test_a_key_is_the_same_in_any_order():
    """Whether shapes are tuples or lists."""
    assert shapes_key({"y": (3,), "x": [1, 2]}) == shapes_key({"x": (1, 2), "y": (3,)})


def test_a_run_has_all_inputs_and_no_others():
    """The message says which ones."""
    check_names("m", ["a", "b"], ["b", "a"])
    with pytest.raises(GraphFailed, match=r"m takes the inputs a, b; got a, c$"):
        check_names("m", ["a", "b"], ["a", "c"])
    with pytest.raises(GraphFailed, match=r"got none$"):
        check_names("m", ["a"], [])


def test_a_column_of_bytes_is_taken_as_it_is():
    """Without a copy."""
    texts = np.array([[b"one"], [b"two"]], object)
    (column,) = bytes_columns(
        "m", Signature(inputs=(TEXT,), outputs=(), axis_limits={}), {"text": texts}
    )
    assert column.tolist() == [b"one", b"two"]
    assert np.shares_memory(column, texts)


@pytest.mark.parametrize(("indices", "wrong"), [([0, 3], 3), ([-3, 1], -3), ([-3, 3], -3)])
def test_an_index_that_a_table_lacks_is_told_with_its_range(indices, wrong):
    """Those at both ends are taken."""
    check_indices("an index is out of range:", np.array([-2, 2]), -2, 2)
    with pytest.raises(GraphFailed) as failed:
        check_indices("an index is out of range:", np.array(indices), -2, 2)
    assert str(failed.value) == (
        f"an index is out of range: idx={wrong} must be within the inclusive range [-2,2]"
    )


def test_another_input_is_told_with_what_came():
    """In numpy's words, beside the graph's."""
    error = wrong_input(TEXT, np.zeros((2, 3), np.int8))
    assert str(error) == "input 'text' is BYTES [batch, 1]; got int8 (2, 3)"


@pytest.mark.parametrize(
    "place", [None, np.zeros(3, np.float32), np.zeros(2, np.float64)], ids=["none", "shape", "type"]
)
def test_a_result_without_a_place_is_handed_over(place):
    """As a copy where its memory is used again; what does not fit stays as it is."""
    result = np.ones(2, np.float32)
    assert into_place(result, place) is result
    copied = into_place(result, place, lasting=False)
    assert not np.shares_memory(copied, result)
    assert copied.tolist() == [1, 1]
    assert place is None or not place.any()


@pytest.mark.parametrize("lasting", [True, False])
def test_a_result_goes_to_its_place(lasting):
    """Where shape and type fit."""
    place = np.zeros(2, np.float32)
    assert into_place(np.ones(2, np.float32), place, lasting=lasting) is place
    assert place.all()
