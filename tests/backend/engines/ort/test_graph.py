"""ONNX Runtime: what the contract does not say of every engine."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper  # noqa: E402

from builders.null_models import comes_true  # noqa: E402
from ge_backend.device.base import GraphSource  # noqa: E402
from ge_backend.device.machine.threads import Cores  # noqa: E402
from ge_backend.engines.ort import graph as onnx_graph  # noqa: E402
from ge_backend.engines.ort.graph import OnnxGraph  # noqa: E402
from ge_backend.engines.ort.session import open_session  # noqa: E402
from ge_backend.errors import GraphFailed, ModelError, OutOfMemory, Unsupported  # noqa: E402

FLOAT, STRING, INT64 = TensorProto.FLOAT, TensorProto.STRING, TensorProto.INT64
X = ("x", FLOAT, ["batch", "length"])
Y = ("y", FLOAT, ["batch", "length"])
ONES = np.ones((2, 3), np.float32)
MANY = np.ones((3, onnx_graph.COPIED_BYTES), np.float32)


@pytest.fixture
def load(tmp_path):
    def load(nodes, inputs=(X,), outputs=(Y,), constants=(), cores=2, **source):
        path = tmp_path / "model.onnx"
        graph = helper.make_graph(
            [helper.make_node(*node[:3], **(node[3] if node[3:] else {})) for node in nodes],
            "graph",
            [helper.make_tensor_value_info(*tensor) for tensor in inputs],
            [
                t if isinstance(t, onnx.ValueInfoProto) else helper.make_tensor_value_info(*t)
                for t in outputs
            ],
            list(constants),
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 8
        path.write_bytes(model.SerializeToString())
        return OnnxGraph(GraphSource.of(path, **source), Cores(cores))

    return load


RELU = [("Relu", ["x"], ["y"])]


def test_dimensions_without_a_name(load):
    """A free dimension without a name has no axis; fixed ones are fixed."""
    spec = load(
        RELU, [("x", FLOAT, ["n", None, 7])], [("y", FLOAT, ["n", None, 7])]
    ).signature.input("x")
    assert (spec.dims, spec.axes) == ((-1, -1, 7), ("n", "", ""))


def test_initialisers_are_not_inputs(load):
    """A constant that older files also list as an input is not asked for."""
    weight = helper.make_tensor("w", FLOAT, [1], [2.0])
    graph = load([("Mul", ["x", "w"], ["y"])], [X, ("w", FLOAT, [1])], constants=[weight])
    assert [spec.name for spec in graph.signature.inputs] == ["x"]
    assert (graph.run({"x": ONES}, {}, exclusive=False)["y"] == 2).all()


def test_an_output_that_is_an_input_reaches_its_place(load):
    """ONNX Runtime leaves the place of such an output unwritten; we copy."""
    graph = load(RELU, outputs=[X, Y])
    place = np.zeros_like(ONES)
    result = graph.run({"x": ONES}, {"x": place}, exclusive=False)
    assert result["x"] is place
    assert (place == 1).all()


def test_several_outputs_with_some_places(load):
    """Outputs with and without a place keep apart."""
    graph = load([*RELU, ("Neg", ["x"], ["z"])], outputs=[Y, ("z", FLOAT, ["batch", "length"])])
    place = np.zeros_like(ONES)
    result = graph.run({"x": ONES}, {"z": place}, exclusive=False)
    assert (result["y"] == 1).all()
    assert result["z"] is place
    assert (place == -1).all()


def test_a_wrong_place_of_one_output_costs_only_that_one(load):
    """After a wrong prediction the output is no longer bound, the others still are."""
    graph = load([*RELU, ("Neg", ["x"], ["z"])], outputs=[Y, ("z", FLOAT, ["batch", "length"])])
    wrong, right = np.zeros((9, 9), np.float32), np.zeros_like(MANY)
    graph.run({"x": MANY}, {"y": wrong, "z": right}, exclusive=False)
    bound = graph._places({"y": wrong, "z": right})
    assert list(bound) == ["z"]


@pytest.mark.parametrize(("given", "way"), [(ONES, "_run_copied"), (MANY, "_run_bound")])
def test_outputs_reach_their_places_either_way(load, monkeypatch, given, way):
    """What is small is copied to its place, since binding costs more; the rest is written there."""
    taken = []
    for name in ("_run_copied", "_run_bound"):
        run = getattr(OnnxGraph, name)
        monkeypatch.setattr(
            OnnxGraph, name, lambda *a, run=run, name=name: taken.append(name) or run(*a)
        )
    place = np.zeros_like(given)
    result = load([("Neg", ["x"], ["y"])]).run({"x": given}, {"y": place}, exclusive=False)
    assert taken == [way]
    assert result["y"] is place
    assert (place == -1).all()


def test_lack_of_memory(load):
    """A tensor larger than memory is OutOfMemory, and the graph runs on."""
    graph = load([("ConstantOfShape", ["x"], ["y"])], [("x", INT64, [1])], [("y", FLOAT, ["n"])])
    with pytest.raises(OutOfMemory, match=r"failed to run: .*memory"):
        graph.run({"x": np.array([2**44])}, {}, exclusive=False)
    assert graph.run({"x": np.array([3])}, {}, exclusive=False)["y"].tolist() == [0, 0, 0]


def test_an_engine_error_is_told_in_one_line(load):
    """What the engine refuses while running is a GraphFailed that names the node's kind."""
    graph = load(
        [("Add", ["x", "w"], ["y"])], constants=[helper.make_tensor("w", FLOAT, [5], [0] * 5)]
    )
    with pytest.raises(GraphFailed, match="Add") as caught:
        graph.run({"x": ONES}, {}, exclusive=False)
    assert "\n" not in str(caught.value)


TEXT = [("x", STRING, ["n"])], [("y", STRING, ["n"])]
ECHO = [("Identity", ["x"], ["y"])]


def strings(*elements):
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array


def test_strings_are_text(load):
    """`str` is taken as well; what comes back is `bytes`."""
    result = load(ECHO, *TEXT).run({"x": strings("é", b"b")}, {}, exclusive=False)["y"]
    assert result.tolist() == ["é".encode(), b"b"]


def test_bytes_that_are_no_text_are_refused(load):
    """ONNX Runtime would keep the text "b'...'" in their place, so they are refused by element."""
    with pytest.raises(GraphFailed, match=r"input 'x', element 1: .*send other bytes as UINT8"):
        load(ECHO, *TEXT).run({"x": strings(b"ok", b"\xff\x00")}, {}, exclusive=False)


def test_strings_beside_numbers(load):
    """A graph with strings takes and gives its numbers, too."""
    graph = load(
        [*ECHO, ("Relu", ["a"], ["b"])],
        [*TEXT[0], ("a", FLOAT, ["n"])],
        [*TEXT[1], ("b", FLOAT, ["n"])],
    )
    numbers = np.array([-1, 2], np.float32)
    result = graph.run({"x": strings(b"p", b"q"), "a": numbers}, {}, exclusive=False)
    assert (result["y"].tolist(), result["b"].tolist()) == ([b"p", b"q"], [0, 2])


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_other_precisions_are_unsupported(load, precision):
    """ONNX files run as they are; the error says what to use instead."""
    with pytest.raises(Unsupported, match=r"model\.pt2"):
        load(RELU, precision=precision)


def test_types_that_triton_lacks_are_refused(load):
    """A sequence or complex tensor is a ModelError that names it."""
    sequence = helper.make_tensor_sequence_value_info("y", FLOAT, None)
    with pytest.raises(ModelError, match=r"'y' \(seq\(tensor\(float\)\)\)"):
        load([("SequenceConstruct", ["x"], ["y"])], outputs=[sequence])


class Sessions:
    """Counts the sessions that are opened, by their threads."""

    def __init__(self, monkeypatch):
        self.threads = []
        real = onnx_graph.open_session

        def opened(path, threads, provider, *, spin):
            self.threads.append(threads)
            return real(path, threads, provider, spin=spin)

        monkeypatch.setattr(onnx_graph, "open_session", opened)


@pytest.fixture
def sessions(monkeypatch):
    return Sessions(monkeypatch)


@pytest.mark.parametrize(
    ("threads", "cores", "opened"), [(0, 1, [1]), (1, 4, [1]), (3, 4, [3]), (0, 4, [1, 4])]
)
def test_sessions_for_threads(load, sessions, threads, cores, opened):
    """Only threads=0 on several cores makes a second session, and only once runs are alone."""
    graph = load(RELU, threads=threads, cores=cores)
    graph.prepare({"x": ONES})
    graph.run({"x": ONES}, {}, exclusive=False)
    assert sessions.threads == opened[:1]
    for _ in range(5):
        graph.run({"x": ONES}, {}, exclusive=True)
    assert comes_true(lambda: sessions.threads == opened)


def test_both_sessions_give_the_same(load):
    """Runs that are alone take turns between them at first; all are right."""
    graph = load(RELU, cores=2)
    for _ in range(5):
        graph.run({"x": ONES}, {}, exclusive=True)
    assert comes_true(lambda: graph._threads._wide is not None)
    for _ in range(6):
        assert graph.run({"x": -ONES}, {}, exclusive=True)["y"].tolist() == (0 * ONES).tolist()


def test_a_file_that_was_changed_since_is_not_opened_again(load, sessions, caplog):
    """Runs that are alone keep to what was loaded, and the log says why they are narrow."""
    graph = load(RELU, cores=2)
    load([("Neg", ["x"], ["y"])], cores=1)  # writes over the same file
    graph.run({"x": ONES}, {}, exclusive=True)
    assert comes_true(lambda: "was changed after it was loaded" in caplog.text)
    assert sessions.threads == [1, 1, 2]
    for _ in range(6):
        assert graph.run({"x": ONES}, {}, exclusive=True)["y"].tolist() == ONES.tolist()


@pytest.fixture
def peaks(monkeypatch):
    """What was measured: the bytes of each output, told as if they were peaks."""
    measured = []

    def peak_bytes(path, runs):
        session = open_session(path, 1, spin=False)
        measured.append([run(session)["y"].nbytes for run in runs])
        return measured[-1]

    monkeypatch.setattr(onnx_graph, "peak_bytes", peak_bytes)
    return measured


@pytest.mark.parametrize("cores", [1, 2])
def test_scratch_is_measured_only_where_nothing_bounds_it(load, peaks, cores):
    """With the largest run some smaller ones are; a run that none covers is measured later."""
    graph = load(RELU, cores=cores)
    assert graph.workspace_bytes({"x": (16, 512)}) == 0
    for shape in [(16, 512), (4, 512), (16, 64), (1, 2048)]:
        graph.prepare({"x": np.ones(shape, np.float32)})
    assert [found[-1] for found in peaks] == [16 * 512 * 4, 2048 * 4]
    assert peaks[0] == sorted(peaks[0])
    assert graph.workspace_bytes({"x": (16, 512)}) == 32768
    assert graph.workspace_bytes({"x": (3, 100)}) == 4096  # as (4, 128), in whole pages
    assert graph.workspace_bytes({"x": (1, 513)}) == 8192


def test_scratch_is_looked_for_once_where_nobody_tells_it(load, monkeypatch):
    """As ONNX Runtime 1.23 does not: each further size would load the file once more, in vain."""
    asked = []
    monkeypatch.setattr(
        onnx_graph, "peak_bytes", lambda path, runs: asked.append(path) or [0] * len(runs)
    )
    graph = load(RELU)
    for rows in (4, 2, 1):
        graph.prepare({"x": np.ones((rows, 512), np.float32)})
    assert len(asked) == 1
    assert graph.workspace_bytes({"x": (4, 512)}) == 0


def test_sizes_that_make_no_sense_do_not_keep_the_largest_from_being_measured(load, peaks):
    """Half the rows are not what this graph's constant is for."""
    weight = helper.make_tensor("w", FLOAT, [16, 1], [2.0] * 16)
    graph = load([("Mul", ["x", "w"], ["y"])], constants=[weight])
    graph.prepare({"x": np.ones((16, 512), np.float32)})
    assert peaks[-1] == [16 * 512 * 4]
    assert graph.workspace_bytes({"x": (16, 512)}) == 32768


def test_a_size_that_cannot_run_is_an_error(load):
    """As in serving."""
    weight = helper.make_tensor("w", FLOAT, [16, 1], [2.0] * 16)
    graph = load([("Mul", ["x", "w"], ["y"])], constants=[weight], cores=1)
    with pytest.raises(GraphFailed, match="failed to run"):
        graph.prepare({"x": np.ones((7, 512), np.float32)})
