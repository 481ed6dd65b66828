"""In which order a model's gears list the dimensions of its inputs."""

import pytest

from ge_backend.engines.acl.gear_order import gear_order
from ge_backend.errors import ModelError


def test_one_order_fits():
    """The fixed dimensions tell which."""
    inputs = {"a": (-1, 3), "b": (-1, 5)}
    assert gear_order(inputs, [(2, 5, 2, 3), (4, 5, 4, 3)], (), "m.om") == ("b", "a")
    assert gear_order(inputs, [(2, 3, 2, 5)], (), "m.om") == ("a", "b")


def test_ranks_count_too():
    """A vector before or behind a matrix."""
    inputs = {"a": (-1, -1, 7), "b": (-1,)}
    assert gear_order(inputs, [(2, 4, 9, 7), (2, 8, 9, 7)], (), "m.om") == ("b", "a")


def test_inputs_that_are_always_alike_may_stand_in_any_order():
    """The shapes are the same."""
    inputs = {"ids": (-1, -1), "mask": (-1, -1), "types": (-1, -1)}
    assert gear_order(inputs, [(1, 8) * 3, (4, 16) * 3], (), "m.om") == ("ids", "mask", "types")


def test_many_inputs_are_no_matter():
    """Those that are alike are not tried in every order."""
    inputs = dict(**{f"x{at}": (-1, -1) for at in range(12)}, last=(-1, 3))
    gears = [(1, 3, *(1, 8) * 12), (2, 3, *(2, 16) * 12)]
    assert gear_order(inputs, gears, (), "m.om")[0] == "last"


@pytest.mark.parametrize(
    ("dims", "gears"),
    [
        ({"a": (-1, -1), "b": (-1, -1)}, [(1, 8, 1, 16)]),
        ({"a": (-1, -1), "b": (-1, 4)}, [(2, 4, 3, 4)]),
    ],
    ids=["alike", "either"],
)
def test_where_orders_differ_the_file_beside_the_model_says_it(dims, gears):
    """Nothing in the model does; the error says what to write."""
    with pytest.raises(ModelError, match=r'model\.om\.json.*"order": \["a", "b"\]'):
        gear_order(dims, gears, (), "m.om")
    assert gear_order(dims, gears, ("a", "b"), "m.om") == ("a", "b")


@pytest.mark.parametrize("stated", [("a",), ("a", "c"), ("a", "a", "b")])
def test_an_order_that_does_not_have_the_inputs(stated):
    """The error names them."""
    with pytest.raises(ModelError, match=r"order .*; the model's inputs are a, b"):
        gear_order({"a": (-1, 3), "b": (-1, 5)}, [(2, 3, 2, 5)], stated, "m.om")


def test_an_order_that_does_not_fit():
    """It is wrong, whoever says it."""
    with pytest.raises(ModelError, match="do not fit"):
        gear_order({"a": (-1, 3), "b": (-1, 5)}, [(2, 3, 2, 5)], ("b", "a"), "m.om")
    with pytest.raises(ModelError, match="do not fit"):
        gear_order({"a": (-1, 3)}, [(2, 4)], (), "m.om")
