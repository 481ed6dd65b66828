"""ONNX on a simulated NPU, compiled by the fake `atc` for its buckets."""

import contextlib
import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from acl_simulator import Accumulate, ChannelMeans, Ranges, Sums, TokenRows, TopK
from builders.cann import fake_cann, runs_of_atc
from builders.npu import Npu, floats, run
from builders.npu_states import GEARS, WIDTH, state_layout
from builders.simulated_onnx import onnx_of
from ge_backend.device.base import Range
from ge_backend.device.resident.buffers import NOTHING_BOUND
from ge_backend.device.resident.states import open_states
from ge_backend.engines.acl.compiled import CompiledGraph
from ge_backend.errors import GraphFailed, ModelError, OutOfMemory
from ge_backend.tensors import DATA_TYPES, Signature, TensorSpec


@pytest.fixture
def npu(tmp_path, monkeypatch):
    cann = fake_cann(tmp_path / "cann")
    monkeypatch.setenv("PATH", str(cann / "bin"), prepend=":")
    monkeypatch.setenv("GE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_ATC_RUNS", str(tmp_path / "runs"))
    npu = Npu(tmp_path)
    yield npu
    npu.close()


def write(npu, graph, name="model.onnx"):
    path = npu.folder / name
    path.write_bytes(onnx_of(graph))
    return path


def buckets(*shapes, name="x"):
    return [{name: shape} for shape in shapes]


AIPP = """aipp_op {
  aipp_mode: static
  input_format: RGB888_U8
  mean_chn_0: 100
  var_reci_chn_0: 0.5
}
"""


def test_a_photo_model_takes_photos_with_its_preprocessing_compiled_in(npu):
    """UINT8 [batch, height, width, 3] instead of FP32 [batch, 3, height, width]: a quarter goes up."""
    path = npu.folder / "model.onnx"
    path.write_bytes(onnx_of(ChannelMeans(), ("batch", 3, 8, 6)))
    (npu.folder / "aipp.cfg").write_text(AIPP)
    graph = npu.load(path, **{"atc.insert_op_conf": "aipp.cfg"})
    assert graph.signature.input("x").describe() == "UINT8 [batch, 8, 6, 3]"
    graph.compile(buckets((1, 8, 6, 3), (4, 8, 6, 3)))
    (line,) = (run["arguments"] for run in runs_of_atc(npu.folder / "runs"))
    assert "--input_format=NCHW" in line
    assert "--input_shape=x:-1,3,8,6" in line
    photos = np.random.default_rng(1).integers(0, 256, (4, 8, 6, 3)).astype(np.uint8)
    before = npu.sim.uploaded_bytes
    y = run(graph, x=photos)["y"]
    assert npu.sim.uploaded_bytes - before == photos.nbytes
    expected = photos.astype(np.float32).mean(axis=(1, 2))
    expected[:, 0] = (expected[:, 0] - 100) / 2
    assert np.allclose(y, expected, rtol=1e-5)


def test_a_compiled_input_of_another_shape_is_refused(npu):
    """What the compiler made must be what the configuration promised."""
    path = npu.folder / "model.onnx"
    path.write_bytes(onnx_of(ChannelMeans(), ("batch", 3, 8, 6)))
    text = AIPP.replace("}", "  src_image_size_h: 9\n  src_image_size_w: 6\n}")
    (npu.folder / "aipp.cfg").write_text(text)
    graph = npu.load(path, **{"atc.insert_op_conf": "aipp.cfg"})
    with pytest.raises(
        ModelError, match=r"takes x UINT8 \[batch, 9, 6, 3\].*takes x UINT8 \[1, 8, 6"
    ):
        graph.compile(buckets((1, 9, 6, 3)))


def test_the_file_leaves_its_shapes_open(npu):
    """Axes are named as in the ONNX file; nothing is compiled or placed yet."""
    graph = npu.load(write(npu, Sums()))
    assert (graph.shape_policy.prepared, graph.shape_policy.fixed) == (True, ())
    assert graph.signature.input("x").describe() == "FP32 [batch, length]"
    assert graph.signature.output("y").describe() == "FP32 [batch]"
    assert runs_of_atc(npu.folder / "runs") == []
    assert graph.workspace_bytes({"x": (1, 8)}) == 0
    for action in (lambda x: run(graph, x=x), lambda x: graph.prepare({"x": x})):
        with pytest.raises(GraphFailed, match="not compiled yet"):
            action(floats(1, 8))


@pytest.mark.parametrize("shapes", [[(2, 8)], [(1, 8), (4, 8)], [(1, 8), (4, 8), (4, 32)]])
def test_it_runs_in_the_buckets_that_it_was_compiled_for(npu, shapes):
    """One shape, batch sizes, or dims: all of them in one compilation."""
    graph = npu.load(write(npu, Sums()))
    graph.compile(buckets(*shapes))
    for shape in shapes:
        x = floats(*shape)
        graph.prepare({"x": x})
        place = np.empty(shape[0], np.float32)
        result = graph.run({"x": x}, {"y": place}, exclusive=False)["y"]
        assert result is place
        assert np.array_equal(result, x.sum(axis=1, dtype=np.float32))
        assert graph.workspace_bytes({"x": shape}) > 0
    with pytest.raises(GraphFailed, match="not compiled for x 3x3"):
        run(graph, x=floats(3, 3))
    assert len(runs_of_atc(npu.folder / "runs")) == 1


def test_more_buckets_take_the_place_of_those_before(npu):
    """While it is compiled again, the former ones run on; afterwards both old and new ones do."""
    graph = npu.load(write(npu, Sums()))
    graph.compile(buckets((1, 8)))
    stop, results = threading.Event(), []

    def serve():
        x = floats(1, 8)
        while not stop.is_set():
            results.append(np.array_equal(run(graph, x=x)["y"], x.sum(axis=1)))

    thread = threading.Thread(target=serve)
    thread.start()
    graph.compile(buckets((1, 8), (4, 32)))
    stop.set()
    thread.join()
    assert all(results)
    for shape in ((1, 8), (4, 32)):
        x = floats(*shape)
        assert np.allclose(run(graph, x=x)["y"], x.sum(axis=1))
    assert len(npu.sim._machine.models) == 1


def test_what_cannot_be_compiled_leaves_what_runs(npu, monkeypatch):
    """The compiler's words come back, and requests go on."""
    graph = npu.load(write(npu, Sums()))
    graph.compile(buckets((1, 8)))
    monkeypatch.setenv("FAKE_ATC", "fails")
    with pytest.raises(ModelError, match="cannot be compiled for Ascend910B3"):
        graph.compile(buckets((1, 8), (4, 32)))
    assert run(graph, x=floats(1, 8))["y"].shape == (1,)


class Small:
    """A workspace with room for little."""

    def place(self, nbytes):
        if nbytes > 1024:
            raise OutOfMemory("the pool is smaller")
        return Range(offset=0, nbytes=nbytes)


def test_what_does_not_fit_leaves_what_runs(npu):
    """The larger model finds no place in the pool."""
    npu.device.reserve(1 << 16)
    graph = npu.load(write(npu, Sums()), Small())
    graph.compile(buckets((1, 8)))
    with pytest.raises(OutOfMemory, match="the pool is smaller"):
        graph.compile(buckets((1, 8), (64, 512)))
    assert run(graph, x=floats(1, 8))["y"].shape == (1,)
    assert len(npu.sim._machine.models) == 1


def test_options_reach_the_compiler_and_ours_do_not(npu):
    """`npu.` is for the device, everything else for `atc`."""
    options = {"ge.aicoreNum": "12|24", "atc.log": "info", "npu.timeout_s": "3"}
    graph = npu.load(write(npu, Sums()), **options)
    graph.compile(buckets((1, 8)))
    (noted,) = runs_of_atc(npu.folder / "runs")
    line = " ".join(noted if isinstance(noted, list) else map(str, noted.values()))
    assert "--aicore_num=12|24" in line
    assert "--log=info" in line
    assert "timeout" not in line


def test_without_a_cache_the_result_is_kept_beside_other_temporary_files(npu, monkeypatch):
    """`off` keeps measured costs nowhere; a compiled model has to be somewhere."""
    monkeypatch.setenv("GE_CACHE_DIR", "off")
    monkeypatch.setattr("tempfile.tempdir", str(npu.folder / "tmp"))
    graph = npu.load(write(npu, Sums()))
    graph.compile(buckets((1, 8)))
    assert list((npu.folder / "tmp").rglob("*.om"))


def test_another_type_after_compiling_is_refused(npu, monkeypatch):
    """An option such as `output_type` would make the results unreadable."""
    graph = npu.load(write(npu, TokenRows()))
    wrong = npu.load(write(npu, Sums(), "other.onnx"))
    wrong.compile(buckets((1, 8)))
    monkeypatch.setattr(graph, "_compiled", lambda _: wrong)
    with pytest.raises(ModelError, match=r"takes input_ids INT64.*compiled, it takes x FP32"):
        graph.compile(buckets((1, 8), name="input_ids"))


def test_indices_that_the_compiler_has_in_32_bits_come_as_the_onnx_file_says(npu):
    """ATC's TopK gives INT32, and ONNX's INT64: into a place, and without one."""
    graph = npu.load(write(npu, TopK()))
    assert graph.signature.output("indices").dtype.name == "INT64"
    graph.compile(buckets((1, 8), (4, 8)))
    x = floats(4, 8)
    expected = TopK().expected(x=x)
    for place in (None, np.zeros((4, 3), np.int64), np.zeros((9, 3), np.int64)):
        places = {} if place is None else {"indices": place}
        found = graph.run({"x": x}, places, exclusive=False)
        assert found["indices"].dtype == np.int64
        assert np.array_equal(found["indices"], expected["indices"])
        assert np.array_equal(found["values"], expected["values"])
        assert (found["indices"] is place) == (place is not None and place.shape == (4, 3))


def test_such_indices_do_not_stay_on_the_device(npu):
    """They are made wide on the host."""
    graph = npu.load(write(npu, TopK()))
    graph.compile(buckets((2, 8)))
    assert graph.device_memory() is None
    found = graph.run_bound({"x": floats(2, 8)}, {}, NOTHING_BOUND)
    assert found["indices"].dtype == np.int64


@pytest.mark.parametrize(
    ("wanted", "made"), [("INT32", "INT64"), ("INT64", "INT16"), ("FP32", "FP16")]
)
def test_no_other_type_is_taken_for_the_files_own(npu, wanted, made):
    """Nothing but the compiler's way with INT64 is known to lose nothing."""
    names = "values", "indices"

    def signed(dtype):
        spec = TensorSpec(name="x", dtype=DATA_TYPES["FP32"], dims=(-1, 8), axes=("batch", ""))
        outputs = (DATA_TYPES["FP32"], DATA_TYPES[dtype])
        return Signature(
            inputs=(spec,),
            outputs=tuple(
                replace(spec, name=name, dtype=of) for name, of in zip(names, outputs, strict=True)
            ),
            axis_limits={},
        )

    closed = []
    om = SimpleNamespace(signature=signed(made), close=lambda: closed.append(True))
    graph = CompiledGraph(npu.folder / "m.onnx", signed(wanted), lambda _: om)
    with pytest.raises(ModelError, match=f"indices {wanted} .* indices {made}"):
        graph.compile(())
    assert closed


def accumulator(npu, shapes):
    """Return a graph as it is after compiling, its outputs called as in the ONNX file."""
    signature = Signature(
        inputs=tuple(spec(name, width) for name, width in (("x", 16), ("h", 16), ("n", 1))),
        outputs=tuple(
            spec(name, width) for name, width in (("y", 16), ("h_next", 16), ("n_next", 1))
        ),
        axis_limits={},
    )
    graph = CompiledGraph(
        npu.folder / "model.onnx",
        signature,
        compiled=lambda _: npu.load(npu.write(Accumulate(), shapes)),
    )
    graph.compile(())
    return graph


def spec(name, width):
    return TensorSpec(name=name, dtype=DATA_TYPES["FP32"], dims=(-1, width), axes=("batch", ""))


def test_its_states_stay_on_the_device(npu):
    """Under the names of the ONNX file, also once it was compiled again."""
    graph = accumulator(npu, GEARS)
    with contextlib.closing(open_states(graph, state_layout(graph.signature))) as slots:
        assert slots.on_device == ("h",)
        x = np.ones((4, WIDTH), np.float32)
        for total in (1, 2, 3):
            starting = [1, 0] if total == 1 else []
            results, _ = slots.run({"x": x}, {}, [1, 0], starting, rows=4, exclusive=False)
            assert list(results) == ["y"]
            assert (results["y"][:2] == total).all()
            graph.compile(())


def test_states_of_a_model_of_any_shape_are_kept_in_host_memory(npu):
    """Its tensors have no fixed place on the device."""
    free = ((1, 8), (1, 64))
    graph = accumulator(npu, Ranges({"x": free, "h": free, "n": free}))
    assert graph.device_memory() is None
    assert open_states(graph, state_layout(graph.signature)).on_device == ()
    with pytest.raises(GraphFailed, match="no tensor of this graph can stay"):
        graph.run_bound({}, {}, NOTHING_BOUND)


def test_nothing_is_in_flight_while_the_compiler_starts(npu, monkeypatch):
    """Neither an offline model's run nor what torch has queued: CANN forbids a fork then."""
    from fakes.torch_vendor import FakeVendor
    from ge_backend.engines.atc import compile as atc
    from ge_backend.engines.torch import npu as torch_npu

    vendor = FakeVendor()
    monkeypatch.setattr(torch_npu, "open_npu", lambda *_, **__: vendor)
    path = npu.folder / "model.pt"
    torch = pytest.importorskip("torch")
    torch.jit.script(torch.nn.ReLU()).save(str(path))
    npu.load(path, **{"torch.mode": "eager"})
    seen, started = [], atc.subprocess.Popen

    def popen(*arguments, **given):
        seen.append((npu.sim.in_flight(), sum(len(stream.work) for stream in vendor.streams)))
        return started(*arguments, **given)

    graph = npu.load(write(npu, Sums()))
    graph.compile(buckets((4, 8)))
    done = threading.Event()

    def work():
        while not done.is_set():
            run(graph, x=floats(4, 8))

    thread = threading.Thread(target=work)
    thread.start()
    for stream in vendor.streams:
        stream.queue(lambda: None)
    monkeypatch.setattr(atc.subprocess, "Popen", popen)
    npu.load(write(npu, Sums(), "other.onnx")).compile(buckets((2, 8)))
    done.set()
    thread.join()
    assert seen == [([], 0)]
