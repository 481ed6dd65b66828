"""What every graph does, on every device: the definition of `Graph`."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from ge_backend.device.base import CompiledAhead
from ge_backend.errors import GraphFailed
from ge_backend.tensors import DATA_TYPES, float32_to_bf16

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def values(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return values of that type, its extremes and what is not a number among them."""
    generator = np.random.default_rng(5)
    kind = DATA_TYPES[dtype].numpy
    if dtype == "BYTES":
        words = ["", "é", "a\0b", "longer than a short string"]
        array = np.empty(shape, dtype=object)
        array.reshape(-1)[:] = [words[i % 4].encode() for i in range(array.size)]
        return array
    if dtype == "BF16":
        return float32_to_bf16(generator.standard_normal(shape))
    if kind.kind == "f":
        array = generator.standard_normal(shape).astype(kind)
        special = [
            np.nan,
            np.inf,
            -np.inf,
            -0.0,
            np.finfo(kind).max,
            np.finfo(kind).smallest_subnormal,
        ]
        array.reshape(-1)[: len(special)] = special[: array.size]
        return array
    low, high = (0, 1) if kind.kind == "b" else (np.iinfo(kind).min, np.iinfo(kind).max)
    array = generator.integers(low, high, shape, endpoint=True, dtype=kind)
    array.reshape(-1)[:2] = [low, high][: array.size]
    return array


def same(left: np.ndarray, right: np.ndarray) -> bool:
    """Return whether type, shape and every bit are equal."""
    alike = left.dtype == right.dtype and left.shape == right.shape
    if left.dtype == object:
        return alike and left.tolist() == right.tolist()
    return alike and left.tobytes() == right.tobytes()


def all_types(bench):
    textless = bench.engine.suffix in {".pt2", ".om"}
    # OpenVINO computes in 32 bits, and refuses what does not fit (tests/backend/device/ov).
    wide = {"UINT32", "INT64", "UINT64", "FP64", "BYTES"}
    narrow = wide if bench.id == "cpu-openvino" else set()
    if bench.engine.suffix == ".pt2":
        narrow = not_exported()
    return [t for t in DATA_TYPES if t not in narrow and not (textless and t == "BYTES")]


def not_exported():
    """Types that this torch saves in no program: UINT32 and UINT64 up to 2.11."""
    import torch
    from torch._export.serde import serialize

    saved = serialize._TORCH_TO_SERIALIZE_DTYPE
    return {
        t for t, d in DATA_TYPES.items() if t != "BYTES" and getattr(torch, d.torch) not in saved
    }


def test_signature_names_types_and_axes(bench):
    """Inputs and outputs are described with their types, free dimensions and axis names."""
    signature = bench.load("sums").signature
    assert [spec.name for spec in signature.inputs] == ["x"]
    assert [spec.name for spec in signature.outputs] == ["y"]
    assert signature.input("x").describe() == "FP32 [batch, length]"
    assert signature.output("y").describe() == "FP32 [batch]"
    assert not signature.input("x").optional


def test_signature_does_not_invent_a_size(bench):
    """An output dimension that no input tells has a shape that cannot be predicted."""
    spec = bench.load("kept", "INT64").signature.output("y")
    assert spec.dims == (-1,)
    assert spec.shape({"length": 4}) is None


def test_signature_of_a_scalar(bench):
    """A tensor without dimensions has none in the signature either."""
    signature = bench.load("scalar").signature
    assert (signature.input("x").dims, signature.output("y").dims) == ((), ())


def test_gives_fresh_outputs(bench):
    """Without a place, the result is an array of its own."""
    result = bench.load("sums").run({"x": X}, {}, exclusive=False)
    assert list(result) == ["y"]
    assert same(result["y"], X.sum(axis=1))
    assert result["y"].flags.writeable


def test_writes_into_the_given_place(bench):
    """With a place of the right shape, the result is that very array."""
    place = np.full(3, -1, dtype=np.float32)
    result = bench.load("sums").run({"x": X}, {"y": place}, exclusive=False)
    assert result["y"] is place
    assert same(place, X.sum(axis=1))


@pytest.mark.parametrize("shape", [(2,), (4,), (0,), (3, 1), (1, 3), ()])
def test_a_wrong_prediction_corrupts_nothing(bench, shape):
    """A place of another shape is not the result, and the memory around it is untouched."""
    graph = bench.load("sums")
    size = int(np.prod(shape))
    around = np.full(64, -1, dtype=np.float32)
    place = around[16 : 16 + size].reshape(shape)
    for _ in range(3):
        result = graph.run({"x": X}, {"y": place}, exclusive=False)
        assert result["y"] is not place
        assert same(result["y"], X.sum(axis=1))
    assert (around[:16] == -1).all()
    assert (around[16 + size :] == -1).all()


def test_a_right_prediction_after_a_wrong_one(bench):
    """One wrong prediction does not spoil later right ones."""
    graph = bench.load("sums")
    graph.run({"x": X}, {"y": np.empty(7, np.float32)}, exclusive=False)
    place = np.full(3, -1, dtype=np.float32)
    result = graph.run({"x": X}, {"y": place}, exclusive=False)
    assert same(result["y"], X.sum(axis=1))


def test_a_place_of_another_type_is_not_used(bench):
    """A place of another type than the output's stays as it was."""
    place = np.full(3, -1, dtype=np.float64)
    result = bench.load("sums").run({"x": X}, {"y": place}, exclusive=False)
    assert same(result["y"], X.sum(axis=1))
    assert (place == -1).all()


def test_an_output_of_unknown_shape(bench):
    """An output whose size only the run tells comes back in its own shape."""
    graph = bench.load("kept", "INT64")
    for length in (1, 5):
        x = np.arange(1, length + 1)
        assert same(graph.run({"x": x}, {}, exclusive=False)["y"], x)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)])
@pytest.mark.parametrize("placed", [True, False])
def test_zero_elements(bench, shape, placed):
    """Tensors of no elements go in and come out, with and without a place."""
    x = np.zeros(shape, np.float32)
    place = {"y": np.zeros(shape, np.float32)} if placed else {}
    assert same(bench.load("echo").run({"x": x}, place, exclusive=False)["y"], x)


def test_sum_over_nothing(bench):
    """Rows of no elements are reduced to zeros; ONNX Runtime refuses that on CUDA."""
    x = np.zeros((3, 0), np.float32)
    if bench.id == "cuda-onnx":
        with pytest.raises(GraphFailed, match="Can't reduce on dim with value of 0"):
            bench.load("sums").run({"x": x}, {}, exclusive=False)
        return
    assert same(bench.load("sums").run({"x": x}, {}, exclusive=False)["y"], np.zeros(3, np.float32))


@pytest.mark.parametrize("placed", [True, False])
def test_scalars(bench, placed):
    """A tensor without dimensions goes in and comes out, with and without a place."""
    x = np.array(2.5, np.float32)
    place = {"y": np.array(0.0, np.float32)} if placed else {}
    assert same(bench.load("scalar").run({"x": x}, place, exclusive=False)["y"], x)


@pytest.mark.parametrize("placed", [True, False])
def test_every_type_bit_for_bit(bench, placed):
    """Each data type passes unchanged, its extremes included, with and without a place."""
    for dtype in all_types(bench):
        x = values(dtype, (3, 4))
        before = x.copy()
        place = {"y": np.zeros_like(x)} if placed else {}
        result = bench.load("echo", dtype).run({"x": x}, place, exclusive=False)["y"]
        assert same(result, before), dtype


def test_results_are_not_the_inputs(bench):
    """A graph that gives back its input gives a copy, which the caller may write to."""
    x = X.copy()
    result = bench.load("echo").run({"x": x}, {}, exclusive=False)["y"]
    result[:] = 0
    assert same(x, X)


@pytest.mark.parametrize("placed", [True, False])
def test_an_output_that_is_an_input_by_name(bench, placed):
    """It is a copy of the input, and the other outputs are right, before and after `prepare`."""
    if bench.engine.suffix == ".om":
        pytest.skip("an offline model names its outputs itself")
    graph = bench.load("passed")
    if isinstance(graph, CompiledAhead):
        graph.compile([{"x": X.shape}])
    for _ in range(2):
        x = X.copy()
        place = {"y": np.zeros(3, np.float32), "x": np.zeros_like(x)} if placed else {}
        result = graph.run({"x": x}, place, exclusive=False)
        assert same(result["y"], X.sum(axis=1))
        assert same(result["x"], X)
        assert all(result[name] is array for name, array in place.items())
        result["x"][:] = 0
        assert same(x, X)
        graph.prepare({"x": X})


def test_reads_arrays_that_cannot_be_written(bench):
    """Inputs may be read-only views."""
    x = X.copy()
    x.flags.writeable = False
    assert same(bench.load("sums").run({"x": x}, {}, exclusive=False)["y"], X.sum(axis=1))


def test_reads_arrays_that_are_not_contiguous(bench):
    """A strided input is read by its elements, not by its memory."""
    x = X[:, ::2]
    assert same(bench.load("sums").run({"x": x}, {}, exclusive=False)["y"], x.sum(axis=1))


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        ({}, "x"),
        ({"x": X, "more": X}, "more"),
        ({"other": X}, "other"),
        ({"x": X.astype(np.float64)}, "float64"),
        ({"x": np.full((3, 4), b"1", dtype=object)}, "object"),
    ],
    ids=["missing", "extra", "another name", "another type", "bytes"],
)
def test_refuses_wrong_inputs(bench, inputs, named):
    """Inputs that are not the graph's are a GraphFailed of one line that names what came."""
    with pytest.raises(GraphFailed, match=named) as caught:
        bench.load("sums").run(inputs, {}, exclusive=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", [(4,), (1, 3, 4)])
def test_refuses_another_rank(bench, shape):
    """An input of another rank is a GraphFailed, and the graph runs on afterwards."""
    graph = bench.load("sums")
    with pytest.raises(GraphFailed):
        graph.run({"x": np.zeros(shape, np.float32)}, {}, exclusive=False)
    assert same(graph.run({"x": X}, {}, exclusive=False)["y"], X.sum(axis=1))


@pytest.mark.parametrize("length", [1, 5, 79, 320])
def test_rows_together_are_what_each_is_alone(bench, length):
    """In whatever size comes first, and as often as it comes: tests of a model go by that."""
    graph = bench.load("sums")
    x = np.random.default_rng(length).integers(-9, 9, (3, length)).astype(np.float32)
    together = graph.run({"x": x}, {}, exclusive=False)["y"]
    alone = [graph.run({"x": x[at : at + 1]}, {}, exclusive=False)["y"] for at in range(3)]
    assert same(np.concatenate(alone), np.asarray(together))
    assert same(graph.run({"x": x}, {}, exclusive=False)["y"], np.asarray(together))


def test_a_short_row_padded_beside_a_long_one_is_what_it_is_alone(bench):
    """Zeros add nothing to a sum, whatever was in that memory before."""
    graph = bench.load("sums")
    graph.run({"x": np.full((2, 320), 7, np.float32)}, {}, exclusive=False)
    row = np.arange(1, 6, dtype=np.float32)[np.newaxis]
    padded = np.concatenate([np.pad(row, ((0, 0), (0, 75))), np.ones((1, 80), np.float32)])
    alone = graph.run({"x": row}, {}, exclusive=False)["y"]
    assert same(graph.run({"x": padded}, {}, exclusive=False)["y"][:1].copy(), np.asarray(alone))


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_exclusive_or_not_is_the_same_result(bench, threads):
    """A run that has the device for itself computes the same, before and after `prepare`."""
    graph = bench.load("sums", threads=threads)
    for _ in range(2):
        for exclusive in (True, False):
            result = graph.run({"x": X}, {}, exclusive=exclusive)["y"]
            assert np.allclose(result, X.sum(axis=1))
        graph.prepare({"x": X})


def test_workspace_is_never_negative(bench):
    """The scratch memory of a shape is a number of bytes."""
    assert bench.load("sums").workspace_bytes({"x": (3, 4)}) >= 0


def test_runs_from_several_threads_at_once(bench):
    """Threads that run one graph at the same time, each in shapes of its own, all get theirs."""
    graph = bench.load("sums")
    wrong: list[object] = []
    start = threading.Barrier(4)

    def work(seed: int) -> None:
        generator = np.random.default_rng(seed)
        start.wait()
        for _ in range(50):
            x = generator.integers(-9, 9, (seed + 1, 5 * seed + 1)).astype(np.float32)
            place = np.empty(len(x), np.float32)
            result = graph.run({"x": x}, {"y": place}, exclusive=False)["y"]
            if result is not place or not np.array_equal(result, x.sum(axis=1)):
                wrong.append((seed, result))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_two_graphs_live_side_by_side(bench):
    """Closing one graph leaves another one of the same device alone."""
    first, second = bench.load("sums"), bench.load("echo")
    first.close()
    bench.loaded.remove(first)
    assert same(second.run({"x": X}, {}, exclusive=False)["y"], X)


def test_compiles_the_shapes_that_it_then_runs(bench):
    """Whoever compiles ahead is told all shapes first."""
    graph = bench.load("sums")
    if isinstance(graph, CompiledAhead):
        graph.compile([{"x": X.shape}])
    graph.prepare({"x": X})
    assert same(graph.run({"x": X}, {}, exclusive=False)["y"], X.sum(axis=1))
