"""An output begins with the rows of its run, or neighbours in a batch get what is each other's."""

from dataclasses import replace

import pytest

from ge_backend.errors import ConfigError
from ge_backend.model.layout.layout import Layout, OutputLayout
from ge_backend.model.layout.output_rows import check_output_rows, lacks_rows
from ge_backend.tensors import DATA_TYPES

OUTPUT = OutputLayout(name="y", dtype=DATA_TYPES["FP32"], dims=(-1,), axes=(-1,), names=("",))
LAYOUT = Layout(batched=True, axes=(), equal_axes=(), limits={}, inputs=(), outputs=(OUTPUT,))


@pytest.mark.parametrize(
    ("rows", "shape", "run"),
    [(1, (16, 1), "1 row"), (3, (6, 16), "3 rows"), (2, (), "2 rows")],
    ids=["transposed", "repeated", "scalar"],
)
def test_rows_that_are_not_first_are_told_with_what_to_change(rows, shape, run):
    """Whatever the file calls its dimensions."""
    told = lacks_rows(OUTPUT, rows, shape)
    assert told.startswith(f"output 'y' has the shape {list(shape)} in a run of {run}: its first")
    assert told.endswith("transpose it in the graph, or set max_batch_size: 0")
    with pytest.raises(ConfigError, match="its first dimension is not the rows"):
        check_output_rows(LAYOUT, rows, {"y": shape})


@pytest.mark.parametrize(
    ("layout", "shapes"),
    [
        (LAYOUT, {"y": (3, 16)}),
        (LAYOUT, {"another": (1,)}),
        (replace(LAYOUT, batched=False), {"y": (16, 1)}),
        (replace(LAYOUT, outputs=(replace(OUTPUT, source="x"),)), {"y": (16, 1)}),
    ],
    ids=["rows first", "not returned", "no batch", "scattered"],
)
def test_other_outputs_are_not_refused(layout, shapes):
    """What no client gets by its rows need not begin with them."""
    check_output_rows(layout, 3, shapes)
