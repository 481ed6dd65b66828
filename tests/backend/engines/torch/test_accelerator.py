"""torch programs on an accelerator: what the contract does not say of every engine."""

import contextlib
import gc
import logging
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fakes.torch_vendor import ADVICE, NOT_PERMITTED, FakeVendor  # noqa: E402
from ge_backend.device.base import GraphSource  # noqa: E402
from ge_backend.engines.torch import accelerator  # noqa: E402
from ge_backend.engines.torch.accelerator import AcceleratorGraph  # noqa: E402
from ge_backend.engines.torch.streams import Streams  # noqa: E402
from ge_backend.errors import (  # noqa: E402
    ConfigError,
    DeviceFault,
    GraphFailed,
    ModelError,
    OutOfMemory,
)

BATCH = torch.export.Dim("batch", min=1, max=64)
SMALL = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)
LARGE = np.linspace(-1, 1, 128, dtype=np.float32).reshape(32, 4)


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.function(x)


@pytest.fixture
def vendor():
    return FakeVendor()


@pytest.fixture
def load(vendor, tmp_path):
    streams = Streams(vendor)

    def load(function=lambda x: x + 1, example=None, **source):
        path = tmp_path / "model.pt2"
        example = torch.from_numpy(SMALL) if example is None else example
        program = torch.export.export(Function(function), (example,), dynamic_shapes=({0: BATCH},))
        torch.export.save(program, str(path))
        return AcceleratorGraph(GraphSource.of(path, **source), streams)

    return load


def run(graph, x=SMALL):
    return graph.run({"x": x}, {}, exclusive=False)["output"]


def counted(graph):
    counts = graph.counts
    return counts.captured, counts.refused, counts.replays, counts.eager


def logged(caplog):
    return [record.message for record in caplog.records if record.name.startswith("ge_backend")]


def test_prepared_shapes_are_captured_once_and_replayed(load):
    """Preparing the same shapes again, as another instance does, captures nothing more."""
    graph = load()
    for x in (LARGE, SMALL, LARGE):
        graph.prepare({"x": x})
    for x in (SMALL, LARGE, -SMALL):
        assert np.array_equal(run(graph, x), x + 1)
    assert counted(graph) == (2, 0, 3, 0)
    assert graph.shape_policy.prepared


def test_nothing_is_allocated_after_prepare(load, vendor):
    """Whatever is run of what was prepared, in whatever order."""
    graph = load()
    for x in (LARGE, SMALL):
        graph.prepare({"x": x})
    before = vendor.counts["allocate", ""]
    for x in (SMALL, LARGE, SMALL):
        run(graph, x)
    assert vendor.counts["allocate", ""] == before


def test_other_shapes_run_eagerly_with_one_warning(load, caplog):
    """They are served all the same; the log names the first, and all are counted."""
    graph = load()
    graph.prepare({"x": SMALL})
    for _ in range(3):
        assert np.array_equal(run(graph, LARGE), LARGE + 1)
    assert counted(graph) == (1, 0, 0, 3)
    (warning,) = logged(caplog)
    assert "x (32, 4) was not prepared" in warning
    caplog.set_level(logging.INFO)
    graph.close()
    assert "eager=3" in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        NOT_PERMITTED,
        f"CUDA error: operation failed due to a previous error during capture{ADVICE}",
        "error code is 207008, stream resources are insufficient",
    ],
)
def test_a_program_that_cannot_be_captured_runs_eagerly(load, vendor, caplog, error):
    """One warning with the reason; the shapes that come next are not tried."""
    vendor.capture_errors = [RuntimeError(error)]
    graph = load()
    for x in (LARGE, SMALL):
        graph.prepare({"x": x})
        assert np.array_equal(run(graph, x), x + 1)
    assert counted(graph) == (0, 1, 0, 2)
    (warning,) = logged(caplog)
    assert "x (32, 4) cannot be captured" in warning
    assert error.splitlines()[0] in warning


def test_a_capture_that_would_fail_is_not_begun(load, vendor, caplog):
    """It is hard to recover from; the warning names the operator that makes the host wait."""
    graph = load(lambda x: x * (x[x > 0].sum()))
    graph.prepare({"x": SMALL})
    assert np.allclose(run(graph), SMALL * SMALL[SMALL > 0].sum())
    assert counted(graph) == (0, 1, 0, 1)
    assert vendor.counts["capture", "compute"] == 0
    assert "aten.index.Tensor needs the device's result" in logged(caplog)[0]


def test_what_is_too_large_to_capture_leaves_room_for_the_rest(load, vendor):
    """Memory that is short for one shape may do for the next smaller one."""
    vendor.capture_errors = [RuntimeError("fake out of memory")]
    graph = load()
    for x in (LARGE, SMALL):
        graph.prepare({"x": x})
        assert np.array_equal(run(graph, x), x + 1)
    assert counted(graph) == (1, 1, 1, 1)


def test_no_memory_for_the_buffers_of_a_capture(load, vendor):
    """Half of them are not kept."""
    graph = load()
    vendor.total_bytes = 1024
    graph.prepare({"x": LARGE})
    assert vendor.allocated_bytes() == 0
    assert np.array_equal(run(graph, LARGE), LARGE + 1)


def test_a_load_that_failed_holds_nothing(load, monkeypatch):
    """Another is tried at once, which may need the memory."""
    seen = []

    def lack(*_):
        weights = torch.nn.Linear(2, 2)
        seen.append(weakref.ref(weights))
        raise RuntimeError("fake out of memory")

    monkeypatch.setattr(accelerator, "load_program", lack)
    gc.disable()
    try:
        with contextlib.suppress(OutOfMemory):
            load()
        assert seen[0]() is None
    finally:
        gc.enable()


def test_a_run_without_memory(load, vendor):
    """OutOfMemory that names the file; the next run is well."""
    graph = load()
    graph.prepare({"x": SMALL})
    vendor.replay_errors = [RuntimeError("fake out of memory: tried to allocate 7")]
    with pytest.raises(OutOfMemory, match=r"model\.pt2 on cpu: fake out of memory"):
        run(graph)
    assert np.array_equal(run(graph), SMALL + 1)


@pytest.mark.parametrize("when", ["capture", "replay"])
def test_a_fault_of_the_device_is_not_the_graphs(load, vendor, when):
    """After it nothing that the process holds can be relied upon."""
    graph = load()
    fault = RuntimeError("fake fault: an illegal memory access")
    if when == "capture":
        vendor.capture_errors = [fault]
    else:
        graph.prepare({"x": SMALL})
        vendor.replay_errors = [fault]
    with pytest.raises(DeviceFault, match=r"cpu broke under .*illegal memory access"):
        graph.prepare({"x": SMALL}) if when == "capture" else run(graph)


def test_workspace_is_the_measured_peak_of_a_shape(load, vendor):
    """Without weights and inputs; 0 for what was not prepared."""
    graph = load()
    vendor.scratch_bytes = 4096
    graph.prepare({"x": LARGE})
    vendor.scratch_bytes = 1024
    graph.prepare({"x": SMALL})
    sizes = [graph.workspace_bytes({"x": shape}) for shape in ((32, 4), (2, 4), (5, 4))]
    assert sizes == [4096, 1024, 0]


def test_close_gives_everything_back(load, vendor):
    """Buffers and graphs are freed, and another graph of the device goes on."""
    first, second = load(), load(lambda x: x * 2)
    for graph in (first, second):
        graph.prepare({"x": SMALL})
    held = vendor.allocated_bytes()
    first.close()
    assert vendor.allocated_bytes() == held // 2
    assert np.array_equal(run(second), SMALL * 2)


@pytest.mark.parametrize("prepared", [True, False])
def test_a_program_that_writes_to_its_input(load, prepared):
    """Neither the caller's array nor the graph's own buffer carries it into the next run."""
    graph = load(lambda x: x.add_(1).clone())
    given = SMALL.copy()
    if prepared:
        graph.prepare({"x": given})
    for _ in range(2):
        assert np.array_equal(run(graph, given), SMALL + 1)
    assert np.array_equal(given, SMALL)


@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize(
    ("precision", "tolerance"), [("origin", 1e-6), ("bf16", 2e-2), ("fp16", 2e-3)]
)
def test_precision_keeps_declared_types(vendor, tmp_path, precision, tolerance, prepared):
    """In every precision inputs and outputs stay float32, and results stay close."""
    torch.manual_seed(3)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    path = tmp_path / "model.pt2"
    program = torch.export.export(module, (torch.from_numpy(SMALL),), dynamic_shapes=({0: BATCH},))
    torch.export.save(program, str(path))
    source = GraphSource.of(path, precision=precision)
    graph = AcceleratorGraph(source, Streams(vendor))
    if prepared:
        graph.prepare({"input": LARGE})
    (result,) = graph.run({"input": LARGE}, {}, exclusive=False).values()
    with torch.inference_mode():
        expected = module(torch.from_numpy(LARGE)).numpy()
    assert result.dtype == np.float32
    assert np.abs(result - expected).max() < tolerance
    assert counted(graph)[2:] == ((1, 0) if prepared else (0, 1))


def test_script_without_a_signature(vendor, tmp_path):
    """TorchScript is captured for the types that it is prepared with; others run eagerly."""
    path = tmp_path / "model.pt"
    torch.jit.save(torch.jit.script(torch.nn.ReLU()), str(path))
    graph = AcceleratorGraph(GraphSource.of(path), Streams(vendor))
    graph.prepare({"INPUT__0": SMALL})
    for x in (SMALL, (SMALL * 9).astype(np.int64)):
        result = graph.run({"INPUT__0": x}, {}, exclusive=False)["OUTPUT__0"]
        assert np.array_equal(result, np.maximum(x, 0))
        assert result.dtype == x.dtype
    assert counted(graph) == (1, 0, 1, 1)


def test_eager_mode_captures_nothing_and_needs_no_buckets(load, caplog):
    """It is what was asked for, so nothing is warned of."""
    graph = load(options=(("torch.mode", "eager"),))
    graph.prepare({"x": SMALL})
    assert np.array_equal(run(graph), SMALL + 1)
    assert not graph.shape_policy.prepared
    assert counted(graph)[0] == 0
    assert not logged(caplog)


def test_torchair_mode_leaves_the_programs_to_the_vendors_compiler(load, vendor, caplog):
    """Each prepared shape gets its program by being run; nothing is captured."""
    graph = load(options=(("torch.mode", "torchair"),))
    assert len(vendor.compiled) == 1
    graph.prepare({"x": SMALL})
    assert np.array_equal(run(graph), SMALL + 1)
    assert graph.shape_policy.prepared
    assert vendor.counts["capture", "compute"] == 0
    assert not logged(caplog)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("torch.mode", "fast"), r"'torch\.mode' is 'fast'; expected one of graphs, eager"),
        (("torch.modes", "eager"), r"torch\.modes are unknown; torch models know torch\.mode"),
    ],
)
def test_unknown_options_are_refused(load, option, said):
    """The error lists the known ones; options of other engines are none of its business."""
    with pytest.raises(ConfigError, match=said):
        load(options=(option,))
    load(options=(("npu.timeout_s", "3"),))


def test_wrong_inputs_are_refused_before_anything_is_queued(load, vendor):
    """Neither preparing nor running them reaches the device."""
    graph = load()
    for call in (graph.prepare, lambda inputs: graph.run(inputs, {}, exclusive=False)):
        with pytest.raises(GraphFailed, match="takes the inputs x"):
            call({"y": SMALL})
    assert not any(stream.work for stream in vendor.streams)


@pytest.mark.parametrize(
    ("text", "kind"), [("fake out of memory", OutOfMemory), ("fake fault: gone", DeviceFault)]
)
def test_weights_that_do_not_reach_the_device(load, vendor, monkeypatch, text, kind):
    """Lack of memory while a file is loaded, or a fault, is none of the file."""

    def move(path, device, declared):
        try:
            raise RuntimeError(text)
        except RuntimeError as error:
            raise ModelError(path) from error

    monkeypatch.setattr("ge_backend.engines.torch.accelerator.load_program", move)
    with pytest.raises(kind, match=text):
        load()
    monkeypatch.undo()

    def wait():
        raise RuntimeError(text)

    monkeypatch.setattr(vendor, "synchronize", wait)
    with pytest.raises(kind, match=text):
        load()
    monkeypatch.undo()


def test_the_signature_is_the_files(load, tmp_path):
    """It is read as on the CPU."""
    spec = load().signature.input("x")
    assert spec.describe().startswith("FP32 [")
