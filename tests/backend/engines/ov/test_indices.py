"""Which values an input may have that is an index of a table."""

import numpy as np
import pytest

openvino = pytest.importorskip("openvino")
from openvino import opset1, opset13  # noqa: E402

from ge_backend.engines.ov.indices import index_ranges  # noqa: E402


def table(*shape):
    return opset13.constant(np.ones(shape, np.float32))


def ranges_of(make, dtype=np.int64):
    given = [opset13.parameter([-1, -1], dtype, name=name) for name in ("ids", "kinds")]
    return index_ranges(openvino.Model([make(*given).output(0)], given, "m"))


def test_ids_have_the_rows_of_their_tables():
    """From the end, too, and in another type; the smallest table counts."""
    embedded = ranges_of(
        lambda ids, kinds: opset13.concat(
            [
                opset13.gather(table(5, 4), opset13.convert(ids, "i32"), 0),
                opset13.gather(table(3, 4), kinds, 0),
                opset13.gather(table(2, 4), kinds, 0),
            ],
            1,
        )
    )
    assert embedded == {0: (-5, 4), 1: (-2, 1)}


def test_an_older_gather_does_not_count_from_the_end():
    """So OpenVINO gives zeros for what is below 0."""
    assert ranges_of(lambda ids, kinds: opset1.gather(table(5, 4), ids, 0)) == {0: (0, 4)}


def test_what_is_no_index_may_have_any_value():
    """As a mask, or a table that a client sends."""
    assert ranges_of(opset13.multiply) == {}
    first = opset13.constant(np.array([0]))
    assert ranges_of(lambda ids, kinds: opset13.gather(ids, first, 0)) == {}
    assert ranges_of(lambda ids, kinds: opset13.gather(ids, kinds, 0)) == {}
