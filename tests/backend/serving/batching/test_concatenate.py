"""Concatenated batches look to the graph as Triton's C++ backends would make them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_backend.errors import GraphFailed
from ge_backend.executor.protocol.arena import Arena
from ge_backend.model.layout.layout import InputLayout, Layout, OutputLayout
from ge_backend.serving.batching.concatenate import batch_shape, one_run, scatter, write_batch
from ge_backend.serving.batching.request import Request, check_request
from ge_backend.serving.batching.split import join, split
from ge_backend.serving.batching.stage import stage, sub_batch_shapes
from ge_backend.shapes.buckets.costs import DynamicCosts, ShapeCache
from ge_backend.tensors import DATA_TYPES

COSTS = DynamicCosts({(1,): 1.0, (4,): 4.0}, 4)


def written(kind, sources, dtype="FP32"):
    """The tensor that an input of this kind becomes; its memory was dirty before."""
    item = InputLayout(
        name="n",
        dtype=DATA_TYPES[dtype],
        dims=(),
        axes=(),
        names=(),
        fill=0.0,
        made=kind,
        source="x",
    )
    target = np.full(batch_shape(item, sources), 77, DATA_TYPES[dtype].numpy)
    write_batch(target, item, sources)
    return target


def arrays(*shapes):
    """Tensors of these shapes, counting up through all of them."""
    ends = np.cumsum([np.prod(shape, dtype=int) for shape in shapes])
    parts = np.split(np.arange(ends[-1], dtype=np.float32), ends[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("BATCH_ELEMENT_COUNT", [2, 4, 6]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", [2, 6, 12]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [0, 2, 6, 12]),
        ("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", [0, 0, 0, 0, 0, 0]),
        ("BATCH_ITEM_SHAPE", [[2], [4], [3], [3]]),
        ("BATCH_ITEM_SHAPE_FLATTEN", [2, 4, 3, 3]),
    ],
)
@pytest.mark.parametrize("dtype", ["FP32", "INT32"])
def test_batch_inputs_describe_the_batch(kind, expected, dtype):
    """Counts are per request, a client's own batch of 2 included; item shapes are per row."""
    tensor = written(kind, arrays((1, 2), (1, 4), (2, 3)), dtype)
    assert tensor.tolist() == expected
    assert tensor.dtype == DATA_TYPES[dtype].numpy


def test_item_shapes_are_those_of_the_proto_file():
    """The example in model_config.proto: [2, 3, 1] and [1, 2, 2]."""
    sources = arrays((2, 3, 1), (1, 2, 2))
    assert written("BATCH_ITEM_SHAPE", sources).tolist() == [[3, 1], [3, 1], [2, 2]]
    assert written("BATCH_ITEM_SHAPE_FLATTEN", sources).tolist() == [3, 1, 3, 1, 2, 2]


def test_a_flat_input_is_every_request_back_to_back():
    """Whatever their rank, in order of arrival, in C order."""
    sources = arrays((1, 2, 2), (2, 1, 3), (1, 0, 5))
    assert written("", sources).tolist() == list(range(10))


def test_empty_tensors_count_zero():
    """A dimension of size 0 makes all counts 0."""
    sources = arrays((1, 0), (1, 3))
    assert written("BATCH_ELEMENT_COUNT", sources).tolist() == [0, 3]
    assert written("BATCH_ITEM_SHAPE", sources).tolist() == [[0], [3]]


def request(index, *, rows=1, equal_sizes=()):
    return Request(index=index, rows=rows, tensors={}, sizes=(), equal_sizes=equal_sizes)


def test_a_batch_is_one_run_in_the_order_of_arrival():
    """It is never sorted or cut, even beyond the rows that a run should take."""
    batch = one_run([request(0, rows=3), request(1), request(2, rows=2)], COSTS, batched=True)
    (run,) = batch.sub_batches
    assert [(span.request, span.first, span.count) for span in run.spans] == [
        (0, 0, 3),
        (1, 0, 1),
        (2, 0, 2),
    ]
    assert (run.bucket, run.rows, run.planned) == ((6,), 6, True)


def test_requests_that_cannot_be_joined_run_apart():
    """Different sizes of other inputs, or no batch dimension to join along."""
    apart = one_run(
        [request(0, equal_sizes=(1,)), request(1, equal_sizes=(2,))], COSTS, batched=True
    )
    assert len(apart.sub_batches) == 2
    assert len(one_run([request(0), request(1)], COSTS, batched=False).sub_batches) == 2


def output(dims, dtype="FP32"):
    return OutputLayout(
        name="y",
        dtype=DATA_TYPES[dtype],
        dims=dims,
        axes=(-1,) * len(dims),
        names=tuple("" for _ in dims),
        source="x",
    )


def test_a_scattered_output_takes_the_shapes_of_its_source():
    """Free dimensions are the source's own, fixed ones stay."""
    sources = arrays((1, 2), (2, 3))
    parts = scatter(output((-1, 4)), np.arange(32, dtype=np.float32), sources, batched=True)
    assert [part.shape for part in parts] == [(1, 2, 4), (2, 3, 4)]
    assert np.concatenate([part.ravel() for part in parts]).tolist() == list(range(32))


def test_without_a_batch_dimension_the_first_dimension_is_the_configurations():
    """Then the output's dims are the whole shape."""
    (part,) = scatter(output((-1,)), np.arange(3, dtype=np.float32), arrays((3,)), batched=False)
    assert part.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "returned", [np.zeros(4, np.float32), np.zeros(6, np.float32), np.zeros(5, np.int64)]
)
def test_an_output_that_cannot_be_scattered_fails_the_run(returned):
    """Too few or too many elements, or another type: the message has both numbers."""
    with pytest.raises(GraphFailed, match=rf"{returned.size} elements of .* expected 5 of FP32"):
        scatter(output((-1,)), returned, arrays((1, 2), (1, 3)), batched=True)


def plain(name, dims, **more):
    return {
        "name": name,
        "dtype": DATA_TYPES[more.pop("dtype", "INT64")],
        "dims": dims,
        "axes": more.pop("axes", (-1,) * len(dims)),
        "names": tuple("" for _ in dims),
        **more,
    }


IDENTITY = Layout(
    batched=True,
    axes=(),
    equal_axes=("k",),
    limits={},
    inputs=(
        InputLayout(**plain("x", (-1, -1)), fill=0.0, made="", source="x"),
        InputLayout(**plain("words", (-1,), dtype="BYTES"), fill=0.0, made="", source="words"),
        InputLayout(
            **plain("n", (), dtype="INT32"), fill=0.0, made="BATCH_ELEMENT_COUNT", source="x"
        ),
        InputLayout(**plain("beside", (-1,), axes=(0,)), fill=0.0, made=""),
    ),
    outputs=(
        OutputLayout(**plain("x", (-1, -1)), source="x"),
        OutputLayout(**plain("words", (-1,), dtype="BYTES"), source="words"),
        OutputLayout(**plain("beside", (-1,), axes=(0,))),
    ),
    concatenated=True,
)


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 4), st.integers(0, 4), st.integers(0, 1)),
        min_size=1,
        max_size=6,
    )
)
def test_scattering_what_was_concatenated_gives_back_every_request(shapes):
    """Through an identity graph, ragged tensors of any sizes come back, and those beside them."""
    rng = np.random.default_rng(0)
    requests = [
        check_request(
            i,
            {
                "x": rng.integers(0, 99, (rows, a, b)),
                "words": np.full((rows, a), b"w%d" % i, object),
                "beside": rng.integers(0, 99, (rows, k)),
            },
            IDENTITY,
        )
        for i, (rows, a, b, k) in enumerate(shapes)
    ]
    arena = Arena(1)
    seen = []
    for sub_batch in one_run(requests, COSTS, batched=True).sub_batches:
        shapes = sub_batch_shapes(sub_batch, requests, IDENTITY)
        arena.reserve(shapes.nbytes)
        order = stage(shapes, requests, IDENTITY, arena)
        graph = {ref.name: arena.view(ref) for ref in order.inputs}
        assert graph["x"].ndim == graph["words"].ndim == 1
        assert graph["n"].tolist() == [
            requests[span.request].tensors["x"].size for span in sub_batch.spans
        ]
        for piece in split(sub_batch, requests, IDENTITY, graph):
            seen.append(piece[0].request)
            for name, array in join([piece], IDENTITY).items():
                sent = requests[piece[0].request].tensors[name]
                assert (array.shape, array.tolist()) == (sent.shape, sent.tolist())
    assert sorted(seen) == list(range(len(requests)))
    arena.close()


def test_a_batch_has_the_rows_that_came_however_many_shapes_there_were():
    """Where rows are padded, a shape that came before is taken instead; here nothing is padded."""
    shapes = ShapeCache(1)
    costs = DynamicCosts({(1,): 1.0, (64,): 64.0}, 64, shapes=shapes)
    assert costs.bucket(8, ()) == (8,)
    assert costs.bucket(5, ()) == (8,)
    (run,) = one_run([request(0, rows=5)], costs, batched=True).sub_batches
    assert (run.bucket, run.rows, run.cost_ns) == ((5,), 5, costs.cost(5, ()))
