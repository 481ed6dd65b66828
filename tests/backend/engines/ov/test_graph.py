"""OpenVINO on the CPU, beyond what every graph does."""

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

openvino = pytest.importorskip("openvino")
torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from builders.null_models import comes_true  # noqa: E402
from ge_backend.device.base import GraphSource  # noqa: E402
from ge_backend.device.machine.threads import Cores  # noqa: E402
from ge_backend.engines.ov import arithmetic  # noqa: E402
from ge_backend.engines.ov import graph as ov_graph  # noqa: E402
from ge_backend.engines.ov.graph import OpenVinoGraph  # noqa: E402
from ge_backend.engines.ov.precision import computed_in  # noqa: E402
from ge_backend.errors import GraphFailed, ModelError, Unsupported  # noqa: E402

WEIGHTS = np.random.default_rng(1).standard_normal((64, 8)).astype(np.float32)


def write(path, *, nodes=(("MatMul", ["x", "w"], ["y"]),), element=TensorProto.FLOAT):
    given = [["batch", "length", 64] if element == TensorProto.FLOAT else ["batch"]]
    out = [["batch", "length", 8] if element == TensorProto.FLOAT else ["batch"]]
    graph = helper.make_graph(
        [helper.make_node(*node) for node in nodes],
        "g",
        [helper.make_tensor_value_info("x", element, given[0])],
        [helper.make_tensor_value_info("y", element, out[0])],
        [numpy_helper.from_array(WEIGHTS, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture
def load(tmp_path):
    graphs = []

    def load(path=None, *, cores=2, **source):
        path = path or write(tmp_path / "m.onnx")
        graphs.append(OpenVinoGraph(GraphSource.of(path, **source), Cores(cores)))
        return graphs[-1]

    yield load
    for graph in graphs:
        graph.close()


def rows(count, length):
    return np.random.default_rng(count).standard_normal((count, length, 64)).astype(np.float32)


def shapes(*sizes):
    return [{"x": (*size, 64)} for size in sizes]


@pytest.mark.parametrize(("precision", "most", "least"), [("origin", 1e-4, 0), ("bf16", 0.5, 1e-4)])
def test_precision_is_what_was_asked_for(load, precision, most, least):
    """OpenVINO would take bf16 by itself where the CPU has it; `origin` is 32 bits."""
    options = load(precision=precision)._narrow.requests.compiled.get_property(
        "INFERENCE_PRECISION_HINT"
    )
    has_bf16 = computed_in(torch.bfloat16) == torch.bfloat16
    bf16 = openvino.Type.bf16 if has_bf16 else openvino.Type.f32
    assert options == {"origin": openvino.Type.f32, "bf16": bf16}[precision]
    x = rows(2, 5)
    y = load(precision=precision).run({"x": x}, {}, exclusive=False)["y"]
    assert np.abs(y - x @ WEIGHTS).max() < most


def test_bf16_is_computed_in_fp32_where_the_processor_has_none(load, monkeypatch, caplog):
    """With AVX512 OpenVINO would compute in BF16 there, and take tens of times as long."""
    monkeypatch.setattr(arithmetic, "has_bf16", lambda: False)
    with caplog.at_level("INFO"):
        hint = load(precision="bf16")._narrow.requests.compiled.get_property(
            "INFERENCE_PRECISION_HINT"
        )
    assert hint == openvino.Type.f32
    assert "this processor has no BF16" in caplog.text


@pytest.mark.parametrize("cores", [1, 2])
def test_a_place_that_is_too_small_is_not_the_result(load, cores):
    """On one core OpenVINO's `infer` tells no error: the place was returned as it had been."""
    x, place = rows(2, 5), np.full((1, 5, 8), -1, np.float32)
    y = load(cores=cores).run({"x": x}, {"y": place}, exclusive=False)["y"]
    assert y is not place
    assert np.abs(y - x @ WEIGHTS).max() < 1e-4


def test_other_precisions_are_refused(load):
    """CPUs have no arithmetic for fp16."""
    with pytest.raises(Unsupported, match="computes in origin or bf16"):
        load(precision="fp16")


def test_a_file_of_openvinos_own_runs(load, tmp_path):
    """With its weights in the file beside it, which are part of the model."""
    model = ov_graph.read_model(write(tmp_path / "m.onnx"))
    openvino.save_model(model, tmp_path / "own.xml", compress_to_fp16=False)
    source = GraphSource.of(tmp_path / "own.xml")
    x = rows(2, 5)
    assert np.allclose(
        load(tmp_path / "own.xml").run({"x": x}, {}, exclusive=False)["y"], x @ WEIGHTS, atol=1e-4
    )
    (tmp_path / "own.bin").write_bytes((tmp_path / "own.bin").read_bytes() + b"0")
    assert GraphSource.of(tmp_path / "own.xml").stamp != source.stamp


def test_states_inside_of_a_file_begin_anew_with_each_run(load, tmp_path, caplog):
    """Else they would be of whoever ran before; the log says so."""
    from openvino import opset6, opset13

    x = opset13.parameter([1, 4], np.float32, name="x")
    zeros = opset13.constant(np.zeros((1, 4), np.float32))
    old = opset6.read_value(zeros, "count", openvino.Type.f32, openvino.PartialShape([1, 4]))
    new = opset13.add(old, x)
    kept = opset6.assign(new, "count")
    model = openvino.Model([new.output(0)], [kept.output(0)], [x], "m")
    openvino.save_model(model, tmp_path / "own.xml")
    graph = load(tmp_path / "own.xml")
    (name,) = [spec.name for spec in graph.signature.inputs]
    for _ in range(2):
        (result,) = graph.run({name: np.ones((1, 4), np.float32)}, {}, exclusive=False).values()
        assert result.tolist() == [[1] * 4]
    assert "keeps states inside (count)" in caplog.text


@pytest.mark.parametrize("bucket", [False, True])
def test_a_file_of_openvinos_own_may_return_its_inputs(load, tmp_path, bucket):
    """In another order than they came, and beside what it computes."""
    from openvino import opset13 as ops

    a, b = (ops.parameter([-1, 4], np.float32, name=name) for name in "ab")
    results = [b, ops.subtract(a, b), a]
    for result, name in zip(results, ("first", "less", "last"), strict=True):
        result.output(0).get_tensor().add_names({name})
    openvino.save_model(openvino.Model(results, [a, b]), tmp_path / "own.xml")
    graph = load(tmp_path / "own.xml")
    names = [spec.name for spec in graph.signature.inputs]
    given = dict(zip(names, np.random.default_rng(3).random((2, 2, 4), np.float32), strict=True))
    if bucket:
        graph.compile([dict.fromkeys(names, (2, 4))])
        graph.prepare(given)
    for _ in range(2):
        left, right = (array.copy() for array in given.values())
        results = list(graph.run(given, {}, exclusive=False).values())
        for result, expected in zip(results, (right, left - right, left), strict=True):
            assert np.array_equal(result, expected)
            result[:] = 0


def test_a_bucket_of_an_input_that_openvino_calls_otherwise(load, tmp_path):
    """Its name is the ONNX file's; `Dropout` is dropped, and leaves the input its output's."""
    nodes = [("Dropout", ["x"], ["d"]), ("MatMul", ["d", "w"], ["y"])]
    graph = load(write(tmp_path / "dropped.onnx", nodes=nodes))
    graph.compile(shapes((1, 8)))
    graph.prepare({"x": rows(1, 8)})
    assert len(graph._narrow.bodies) == 1
    y = graph.run({"x": rows(1, 8)}, {}, exclusive=False)["y"]
    assert np.allclose(y, rows(1, 8) @ WEIGHTS, atol=1e-4)


def test_buckets_have_bodies_of_their_own_smallest_first(load, monkeypatch):
    """So many; the others run in the model for any shape. All are right."""
    monkeypatch.setattr(ov_graph, "MAX_BODIES", 2)
    graph = load()
    assert graph.shape_policy.bucketed
    sizes = [(4, 16), (1, 8), (2, 8)]
    graph.compile(shapes(*sizes))
    for size in sizes:
        graph.prepare({"x": rows(*size)})
        graph.prepare({"x": rows(*size)})
    assert {key[0][1][:2] for key in graph._narrow.bodies} == {(1, 8), (2, 8)}
    for size in (*sizes, (3, 5)):
        x = rows(*size)
        place = np.empty((*size, 8), np.float32)
        for given in ({}, {"y": place}, {"y": np.empty((1, 1, 8), np.float32)}):
            y = graph.run({"x": x}, given, exclusive=False)["y"]
            assert np.allclose(y, x @ WEIGHTS, atol=1e-4)
        assert np.allclose(graph.run({"x": x}, {"y": place}, exclusive=False)["y"], place)


def test_the_weights_are_there_once(load):
    """What runs any shape before buckets are compiled is given up for a body beside theirs."""
    graph = load()
    before = weakref.ref(graph._narrow.requests)
    graph.compile(shapes((1, 8)))
    graph.prepare({"x": rows(1, 8)})
    assert before() is None
    assert len(graph._narrow.bodies) == 1
    y = graph.run({"x": rows(3, 5)}, {}, exclusive=False)["y"]
    assert np.allclose(y, rows(3, 5) @ WEIGHTS, atol=1e-4)


def test_a_bucket_that_comes_later_has_a_body_too(load):
    """What was compiled before is replaced."""
    graph = load()
    for sizes in ([(1, 8)], [(1, 8), (2, 4)], [(2, 4)]):
        graph.compile(shapes(*sizes))
        for size in sizes:
            graph.prepare({"x": rows(*size)})
            y = graph.run({"x": rows(*size)}, {}, exclusive=False)["y"]
            assert np.allclose(y, rows(*size) @ WEIGHTS, atol=1e-4)
    assert {key[0][1][:2] for key in graph._narrow.bodies} == {(1, 8), (2, 4)}


def test_buckets_are_not_compiled_where_their_weights_would_fill_the_memory(load, monkeypatch):
    """The model for any shape has weights of its own until then."""
    graph = load()
    few = SimpleNamespace(free_bytes=WEIGHTS.nbytes)
    monkeypatch.setattr(ov_graph, "host_memory", lambda: few)
    graph.compile(shapes((1, 8)))
    graph.prepare({"x": rows(1, 8)})
    assert not graph._narrow.bodies
    assert graph.run({"x": rows(1, 8)}, {}, exclusive=False)["y"].shape == (1, 8, 8)


@pytest.mark.parametrize(("step", "kind"), [("_compile", ModelError), ("_run", RuntimeError)])
def test_a_bucket_that_cannot_be_compiled_runs_all_the_same(load, monkeypatch, caplog, step, kind):
    """In the model for any shape, as where a body for that does not run; said in the log."""
    graph = load()
    graph.compile(shapes((1, 8)))

    def refuse(*_):
        raise kind("no room")

    monkeypatch.setattr(graph, step, refuse)
    with caplog.at_level("INFO"):
        graph.prepare({"x": rows(1, 8)})
    assert "no room" in caplog.text
    assert not graph._narrow.bodies
    monkeypatch.undo()
    assert graph.run({"x": rows(1, 8)}, {}, exclusive=False)["y"].shape == (1, 8, 8)


def test_a_place_is_written_without_a_copy(load):
    """In a bucket's own model and in the one for any shape."""
    graph = load()
    graph.compile(shapes((1, 8)))
    graph.prepare({"x": rows(1, 8)})
    for size in ((1, 8), (3, 4)):
        place = np.empty((*size, 8), np.float32)
        assert graph.run({"x": rows(*size)}, {"y": place}, exclusive=False)["y"] is place


def test_no_memory_of_the_caller_is_held_after_a_run(load):
    """An arena can be given back as soon as a run has ended."""
    graph = load()
    x, place = rows(2, 4), np.empty((2, 4, 8), np.float32)
    gone = [weakref.ref(x), weakref.ref(place)]
    graph.run({"x": x}, {"y": place}, exclusive=False)
    del x, place
    gc.collect()
    assert [one() for one in gone] == [None, None]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("int64", 2**31), ("int64", -(2**31) - 1), ("int64", 2**63 - 1), ("uint32", 2**31)],
)
def test_whole_numbers_that_need_more_than_32_bits_are_refused(load, tmp_path, dtype, value):
    """OpenVINO would cut them off without a word; it computes UINT32 with a sign."""
    element = getattr(TensorProto, dtype.upper())
    path = write(tmp_path / "i.onnx", nodes=[("Identity", ["x"], ["y"])], element=element)
    graph = load(path)
    with pytest.raises(GraphFailed, match=r"32 bits.*onnxruntime"):
        graph.run({"x": np.array([1, value], dtype)}, {}, exclusive=False)
    least = max(-(2**31), np.iinfo(dtype).min)
    x = np.array([2**31 - 1, least, 0], dtype)
    assert graph.run({"x": x}, {}, exclusive=False)["y"].tolist() == x.tolist()


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32"])
def test_whole_numbers_that_fp32_has_not_are_refused(load, tmp_path, dtype):
    """Where an operator computes in FP32: OpenVINO would give the remainder of another number."""
    element = getattr(TensorProto, dtype.upper())
    path = write(tmp_path / "i.onnx", nodes=[("Mod", ["x", "x"], ["y"])], element=element)
    graph = load(path)
    with pytest.raises(
        GraphFailed, match=r"to 16777217, .* in FP32 here, up to 16777216; .*onnxruntime"
    ):
        graph.run({"x": np.array([3, 2**24 + 1], dtype)}, {}, exclusive=False)
    x = np.array([2**24, 5], dtype)
    assert graph.run({"x": x}, {}, exclusive=False)["y"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("threads", "cores", "streams", "per_run"),
    [(0, 2, 2, 1), (1, 2, 2, 1), (2, 2, 1, 2), (0, 1, 1, 1)],
)
def test_threads_of_a_run(load, threads, cores, streams, per_run):
    """As many runs at once as cores allow."""
    graph = load(threads=threads, cores=cores)
    assert int(graph._narrow.requests.compiled.get_property("NUM_STREAMS")) == streams
    assert (
        int(graph._narrow.requests.compiled.get_property("INFERENCE_NUM_THREADS"))
        == streams * per_run
    )


def test_runs_make_no_requests(load, monkeypatch):
    """Each takes one that was made with its compiled model: making one beside runs is not safe."""
    graph, made = load(threads=1), []
    graph.compile(shapes((1, 4)))
    graph.prepare({"x": rows(1, 4)})
    monkeypatch.setattr(openvino.CompiledModel, "create_infer_request", made.append)
    for size in ((1, 4), (2, 5), (1, 4)):
        y = graph.run({"x": rows(*size)}, {}, exclusive=False)["y"]
        assert np.allclose(y, rows(*size) @ WEIGHTS, atol=1e-4)
    assert made == []


def test_runs_that_are_alone_may_take_all_cores(load):
    """In a model of their own, which gives the same."""
    graph = load(cores=2)
    x = rows(2, 4)
    for _ in range(3):
        graph.run({"x": x}, {}, exclusive=True)
    assert comes_true(lambda: graph._threads._wide is not None)
    for _ in range(6):
        y = graph.run({"x": x}, {}, exclusive=True)["y"]
        assert np.allclose(y, x @ WEIGHTS, atol=1e-4)


def test_a_file_that_was_changed_since_makes_no_wide_model(load, tmp_path, caplog):
    """Weights in a file of their own are read from there at each compiling."""
    path = write(tmp_path / "m.onnx")
    graph = load(path, cores=2)
    write(path, nodes=[("MatMul", ["x", "w"], ["m"]), ("Neg", ["m"], ["y"])])
    graph.run({"x": rows(1, 4)}, {}, exclusive=True)
    assert comes_true(lambda: "was changed after it was loaded" in caplog.text)
    np.testing.assert_allclose(
        graph.run({"x": rows(1, 4)}, {}, exclusive=True)["y"], rows(1, 4) @ WEIGHTS, rtol=1e-4
    )


def test_an_operation_that_fails_is_told_in_one_line(load):
    """Sizes that do not fit together, of dimensions that the file leaves open."""
    with pytest.raises(GraphFailed) as caught:
        load().run({"x": np.zeros((1, 2, 63), np.float32)}, {}, exclusive=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("length", [2, 3, 5])
@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("inside", ["graph", "branch"])
def test_rows_that_do_not_fit_the_weights_fail(load, tmp_path, inside, rank, length):
    """OpenVINO multiplies by what lies behind short ones in memory, and ignores the end of long ones."""
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [*"abc"[:rank]])
    given = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [*"def"[:rank]]),
        helper.make_tensor_value_info("on", TensorProto.BOOL, [1]),
    ]
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "other", [], [y])
    branch = helper.make_graph([product], "branch", [], [y])
    chosen = helper.make_node("If", ["on"], ["y"], then_branch=branch, else_branch=other)
    nodes = [product] if inside == "graph" else [chosen]
    weights = WEIGHTS[:4].copy()
    graph = helper.make_graph(nodes, "g", given, [y], [numpy_helper.from_array(weights, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "open.onnx").write_bytes(model.SerializeToString())
    loaded = load(tmp_path / "open.onnx")

    def run(length):
        x = np.random.default_rng(length).random((2,) * (rank - 1) + (length,), np.float32)
        return loaded.run({"x": x, "on": np.ones(1, bool)}, {}, exclusive=False)["y"], x

    result, x = run(4)
    np.testing.assert_allclose(result, x @ weights, rtol=1e-5)
    with pytest.raises(GraphFailed, match="conflicts with the reshape pattern"):
        run(length)


@pytest.mark.parametrize("wrong", [-5, 4, 99])
def test_an_index_that_a_table_has_no_row_for_fails(load, tmp_path, wrong):
    """OpenVINO gives zeros for it, as if it were a token; the words are ONNX Runtime's."""
    table = WEIGHTS[:4].copy()
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "ids"], ["y"])],
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "length", 8])],
        [numpy_helper.from_array(table, "table")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "ids.onnx").write_bytes(model.SerializeToString())
    loaded = load(tmp_path / "ids.onnx")
    ids = np.array([[0, 3, -4]])
    np.testing.assert_array_equal(loaded.run({"ids": ids}, {}, exclusive=False)["y"], table[ids])
    with pytest.raises(GraphFailed, match=rf"idx={wrong} must be within .* range \[-4,3\]"):
        loaded.run({"ids": np.array([[0, wrong, 1]])}, {}, exclusive=False)


@pytest.mark.parametrize("kind", ["read-only", "strided"])
def test_copies_of_inputs_live_as_long_as_the_run(load, tmp_path, kind):
    """Of two inputs, the memory of the first one's copy would be the second one's."""
    names = ("x", "z", "y")
    tensors = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", "length"])
        for name in names
    }
    nodes = [helper.make_node("Add", ["x", "z"], ["y"])]
    graph = helper.make_graph(nodes, "g", [tensors["x"], tensors["z"]], [tensors["y"]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    (tmp_path / "sum.onnx").write_bytes(model.SerializeToString())
    added = load(tmp_path / "sum.onnx")
    for count in range(1, 50):
        given = {name: rows(count, 2)[:, at] for at, name in enumerate("xz")}
        if kind == "read-only":
            given = {name: np.ascontiguousarray(array) for name, array in given.items()}
            for array in given.values():
                array.flags.writeable = False
        y = added.run(given, {}, exclusive=False)["y"]
        assert np.array_equal(y, given["x"] + given["z"])
