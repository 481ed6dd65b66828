"""A tensor between two steps, as either of them sees it."""

import numpy as np
import pytest

from ge_backend.errors import InvalidRequest
from ge_backend.model.config.model import TensorConfig
from ge_backend.serving.ensemble.shapes import as_read, for_graph, from_graph
from ge_backend.tensors import DATA_TYPES


def declared(dims, graph_dims):
    return TensorConfig(
        name="t",
        dtype=DATA_TYPES["FP32"],
        dims=dims,
        graph_dims=graph_dims,
        ragged=False,
        optional=False,
    )


@pytest.mark.parametrize("rows", [(), (2,)], ids=["unbatched", "batched"])
@pytest.mark.parametrize(
    ("dims", "graph_dims", "shape", "graph_shape"),
    [
        ((-1, -1), (-1, 1, -1), (3, 4), (3, 1, 4)),
        ((2, 4, -1, 6), (8, -1, 1, 6), (2, 4, 5, 6), (8, 5, 1, 6)),
        ((6,), (2, 3), (6,), (2, 3)),
        ((1,), (), (1,), ()),
        ((-1, -1), (-1, 1, -1), (0, 3), (0, 1, 3)),
        ((-1, 2), (-1, 2), (3, 2), (3, 2)),
    ],
)
def test_free_dims_keep_their_sizes_in_order(rows, dims, graph_dims, shape, graph_shape):
    """Either way through a `reshape`, with a batch dimension in front and without one."""
    tensor, batched = declared(dims, graph_dims), bool(rows)
    outside, inside = np.zeros(rows + shape), np.zeros(rows + graph_shape)
    assert for_graph(outside, tensor, batched=batched).shape == inside.shape
    assert from_graph(inside, tensor, batched=batched).shape == outside.shape


@pytest.mark.parametrize(
    ("dims", "graph_dims", "shape"),
    [
        ((-1, -1), (-1, 1, -1), (2, 3)),
        ((6,), (2, 3), (2, 5)),
        ((-1, -1), (-1,), (2, 3, 4)),
        ((-1,), (-1, -1), (2, 3)),
    ],
)
def test_a_shape_that_does_not_fit_is_the_requests_error(dims, graph_dims, shape):
    """Not one of numpy's, which would fail the whole batch."""
    with pytest.raises(InvalidRequest, match=r"input 't' has shape \[2, .* from \[batch, .* to \["):
        for_graph(np.zeros(shape), declared(dims, graph_dims), batched=True)
    with pytest.raises(InvalidRequest, match=r"output 't' has shape \[2, "):
        from_graph(np.zeros(shape), declared(graph_dims, dims), batched=True)


@pytest.mark.parametrize(
    ("shape", "written", "dims", "batched", "seen"),
    [
        ((2, 3), True, (-1,), True, (2, 3)),
        ((2, 3), False, (-1, -1), False, (2, 3)),
        ((2, 3), False, (3,), True, (2, 3)),
        ((3,), False, (-1,), True, (1, 3)),
        ((2, 3), True, (-1, 3), False, (2, 3)),
        ((1, 3), True, (3,), False, (3,)),
        ((2, 3), True, (3,), False, (2, 3)),
    ],
)
def test_a_batch_dimension_is_read_as_the_host_reads_it(shape, written, dims, batched, seen):
    """Taken for what it is written as where that fits; else one row comes or goes, and no more."""
    assert as_read(np.zeros(shape), dims, written=written, read=batched).shape == seen
