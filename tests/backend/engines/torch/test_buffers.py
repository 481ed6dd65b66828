"""Device buffers on an accelerator, with states in them: as in host memory, but not there."""

import contextlib
import json
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fakes.torch_vendor import FakeVendor  # noqa: E402
from ge_backend.device.base import GraphSource  # noqa: E402
from ge_backend.device.resident.buffers import Bound, BoundTensor, Copy  # noqa: E402
from ge_backend.device.resident.state_layout import StateLayout  # noqa: E402
from ge_backend.device.resident.states import StateStore, open_states  # noqa: E402
from ge_backend.engines.torch import capture  # noqa: E402
from ge_backend.engines.torch.accelerator import AcceleratorGraph  # noqa: E402
from ge_backend.engines.torch.buffers import BoundCopies, TorchMemory, places  # noqa: E402
from ge_backend.engines.torch.cuda import open_cuda  # noqa: E402
from ge_backend.engines.torch.streams import Streams  # noqa: E402
from ge_backend.errors import (  # noqa: E402
    DeviceUnavailable,
    GraphFailed,
    ModelError,
    OutOfMemory,
)
from ge_backend.model.config.sequence_batching import State  # noqa: E402
from ge_backend.tensors import DATA_TYPES  # noqa: E402

WIDTH = 3
MODES = ("graphs", "eager")


class Step(torch.nn.Module):
    """y and h_next are x + h, n_next is n + 1."""

    def forward(self, x, h, n):
        total = x + h
        return total, total.clone(), n + 1


class Growing(torch.nn.Module):
    """Step, with all that came before as one more state."""

    def forward(self, x, h, past):
        total = x + h
        return total, total.clone(), torch.cat([past, x], 1)


class Stacked(torch.nn.Module):
    """y is x + the first half of h, h_next is x + h."""

    def forward(self, x, h):
        total = x + h
        return total[0] * 1, total


@pytest.fixture(params=["fake", pytest.param("cuda", marks=pytest.mark.cuda)])
def vendor(request):
    if request.param == "fake":
        return FakeVendor()
    try:
        return open_cuda(0)
    except DeviceUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def load(vendor, tmp_path):
    streams = Streams(vendor)

    def load(mode="graphs", module=Step, batched=True):
        rows = (2,) if batched else ()
        examples = [
            torch.zeros(*rows, WIDTH),
            torch.zeros(*rows, WIDTH),
            torch.zeros(*rows, 1).long(),
        ]
        batch = {0: torch.export.Dim("batch", min=1, max=64)} if batched else {}
        shapes = [batch, batch, batch]
        names = ["x", "h", "n"]
        if module is Growing:
            examples[2] = torch.zeros(*rows, 5)
            shapes[2] = {**batch, 1: torch.export.Dim("past", min=0, max=64)}
            names[2] = "past"
        program = torch.export.export(module(), tuple(examples), dynamic_shapes=tuple(shapes))
        known = {"inputs": names, "outputs": ["y", "h_next", f"{names[2]}_next"]}
        path = tmp_path / "model.pt2"
        torch.export.save(program, str(path), extra_files={"ge_names.json": json.dumps(known)})
        source = GraphSource.of(path, options=(("torch.mode", mode),))
        return AcceleratorGraph(source, streams)

    return load


def state(name, dims=(WIDTH,), dtype="FP32", file="", output=""):
    return State(
        input=name,
        output=output or f"{name}_next",
        dtype=DATA_TYPES[dtype],
        dims=dims,
        initial_dims=tuple(max(dim, 0) for dim in dims),
        initial_file=file,
    )


def state_layout(*states, count=4, batched=True, hidden=True):
    wanted = states or (state("h"), state("n", (1,), "INT64"))
    outputs = frozenset(one.output for one in wanted) if hidden else frozenset()
    return StateLayout(states=wanted, count=count, batched=batched, hidden=outputs)


def prepared(graph, *rows):
    for count in rows:
        graph.prepare(
            {
                "x": np.zeros((count, WIDTH), np.float32),
                "h": np.zeros((count, WIDTH), np.float32),
                "n": np.zeros((count, 1), np.int64),
            }
        )
    return graph


def step(slots, values, ids, starting=(), rows=None):
    """Run a batch padded with ones; return the sums of its real rows."""
    x = np.ones((rows or len(values), WIDTH), np.float32)
    x[: len(values)] = np.array(values, np.float32)[:, None]
    results, shapes = slots.run({"x": x}, {}, ids, starting, rows=len(x), exclusive=False)
    assert shapes == {}
    assert list(results) == ["y"]
    return results["y"][: len(values), 0].tolist()


@pytest.mark.parametrize("mode", MODES)
def test_every_slot_goes_on_from_its_own_state(load, mode):
    """Whoever shares the batch, in whatever order, in buckets that are captured and others."""
    graph = prepared(load(mode), 4, 2)
    slots = open_states(graph, state_layout())
    assert slots.on_device == ("h", "n")
    assert step(slots, [1, 10, 100, 1000], [3, 0, 1, 2], starting=[3, 0, 1, 2]) == [
        1,
        10,
        100,
        1000,
    ]
    assert step(slots, [2, 3], [0, 3]) == [12, 4]
    assert step(slots, [3], [2]) == [1003]  # not prepared
    assert step(slots, [0, 0, 0], [2, 1, 0], rows=4) == [1003, 100, 12]
    assert step(slots, [7], [2], starting=[2], rows=2) == [7]
    assert step(slots, [1], [2], rows=2) == [8]
    replayed = {"graphs": 5, "eager": 0}[mode]
    assert (graph.counts.replays, graph.counts.eager) == (replayed, 6 - replayed)


@pytest.mark.parametrize("mode", MODES)
def test_it_computes_what_host_memory_does(load, mode):
    """A hundred random batches, to the bit."""
    graph = prepared(load(mode), 4, 1)
    pair = open_states(graph, state_layout()), StateStore(graph, state_layout(), None)
    generator = np.random.default_rng(11)
    known = set()
    for _ in range(100):
        ids = generator.permutation(4)[: generator.integers(1, 5)].tolist()
        starting = [slot for slot in ids if slot not in known or generator.random() < 0.1]
        known.update(ids)
        rows = 1 if len(ids) == 1 else 4
        x = generator.standard_normal((rows, WIDTH)).astype(np.float32)
        ours, theirs = (
            one.run({"x": x}, {}, ids, starting, rows=rows, exclusive=False)[0]["y"] for one in pair
        )
        assert ours[: len(ids)].tobytes() == theirs[: len(ids)].tobytes()


@pytest.mark.parametrize("vendor", ["fake"], indirect=True)
def test_a_chip_that_cannot_put_rows_copies_one_after_the_other(load, vendor):
    """Ascend310P has no such operator."""
    vendor.puts_rows = False
    slots = open_states(prepared(load(), 4), state_layout())
    assert step(slots, [1, 2, 3, 4], [3, 0, 1, 2], starting=[0, 1, 2, 3]) == [1, 2, 3, 4]
    assert step(slots, [1, 1, 1, 1], [0, 1, 2, 3]) == [3, 4, 5, 2]
    assert step(slots, [5], [2], rows=4) == [10]
    assert vendor.counts["put", "compute"] == 0
    assert vendor.counts["pick", "compute"] > 0


@pytest.mark.parametrize("vendor", ["fake"], indirect=True)
@pytest.mark.parametrize(
    ("few_bytes", "crossings"),
    [
        # x to the graph, the numbers of the rows, y from the graph
        pytest.param(1 << 18, {("copy", "compute"): 3}, id="few"),
        pytest.param(
            0,
            {("copy", "uploads"): 1, ("copy", "compute"): 3, ("copy", "downloads"): 1},
            id="many",
        ),
    ],
)
def test_only_row_numbers_cross_the_bus(load, vendor, monkeypatch, few_bytes, crossings):
    """In a captured graph: x up, y down, and which rows; nothing is allocated."""
    monkeypatch.setattr(capture, "FEW_BYTES", few_bytes)
    slots = open_states(prepared(load(), 4), state_layout())
    step(slots, [1, 2, 3, 4], [0, 1, 2, 3], starting=[0, 1, 2, 3])
    step(slots, [1, 2, 3, 4], [0, 1, 2, 3])
    before = vendor.counts.copy()
    step(slots, [1, 2, 3, 4], [2, 3, 0, 1])
    assert vendor.counts - before == {
        **crossings,
        ("upload", ""): 1,  # x
        ("download", ""): 1,  # y
        ("pick", "compute"): 2,
        ("replay", "compute"): 1,
        ("put", "compute"): 2,
    }


@pytest.mark.parametrize("mode", MODES)
def test_a_sequence_begins_with_its_file(load, mode, tmp_path):
    """Every time it begins; so does padding."""
    first = np.arange(WIDTH, dtype=np.float32)
    (tmp_path / "first").write_bytes(first.tobytes())
    states = state("h", file=str(tmp_path / "first")), state("n", (1,), "INT64")
    slots = open_states(prepared(load(mode), 4), state_layout(*states))
    x = np.ones((4, WIDTH), np.float32)
    for _ in range(2):
        for number, starting in ((1, [3]), (2, [])):
            results, _ = slots.run({"x": x}, {}, [3], starting, rows=4, exclusive=False)
            assert np.array_equal(results["y"][0], first + number)
            assert np.array_equal(results["y"][1:], np.stack([first + 1] * 3))


@pytest.mark.parametrize("mode", MODES)
def test_a_state_may_be_an_output_as_well(load, mode):
    """It comes in its place then, and is kept."""
    slots = open_states(prepared(load(mode), 1), state_layout(hidden=False))
    place = np.zeros((1, WIDTH), np.float32)
    for total, starting in ((1, [0]), (2, [])):
        x = np.ones((1, WIDTH), np.float32)
        results, _ = slots.run({"x": x}, {"h_next": place}, [0], starting, rows=1, exclusive=False)
        assert sorted(results) == ["h_next", "n_next", "y"]
        assert results["h_next"] is place
        assert place.tolist() == [[total] * WIDTH]
        assert results["n_next"].tolist() == [[total]]


@pytest.mark.parametrize("mode", MODES)
def test_without_a_batch_dimension_there_is_one_sequence_per_run(load, mode):
    """States and inputs have the program's own shapes."""
    graph = load(mode, batched=False)
    graph.prepare(
        {
            "x": np.zeros(WIDTH, np.float32),
            "h": np.zeros(WIDTH, np.float32),
            "n": np.zeros(1, np.int64),
        }
    )
    slots = open_states(graph, state_layout(batched=False))
    x = np.ones(WIDTH, np.float32)
    for slot, total in ((2, 1), (1, 1), (2, 2), (2, 3), (1, 2)):
        starting = [slot] if total == 1 else []
        results, _ = slots.run({"x": x}, {}, [slot], starting, rows=1, exclusive=False)
        assert results["y"].tolist() == [total] * WIDTH


def test_states_that_grow_go_through_the_host(load):
    """Beside others that stay."""
    slots = open_states(load("eager", Growing), state_layout(state("h"), state("past", (-1,))))
    assert slots.on_device == ("h",)
    for number in range(1, 4):
        starting = [1] if number == 1 else []
        x = np.ones((1, WIDTH), np.float32)
        results, shapes = slots.run({"x": x}, {}, [1], starting, rows=1, exclusive=False)
        assert results["y"].tolist() == [[number] * WIDTH]
        assert shapes == {"past": (number * WIDTH,)}


@pytest.mark.parametrize("mode", MODES)
def test_a_state_that_does_not_come_is_refused(load, mode):
    """By name."""
    slots = open_states(
        prepared(load(mode), 1), state_layout(state("h", output="z"), state("n", (1,), "INT64"))
    )
    with pytest.raises(GraphFailed, match="no output 'z'"):
        step(slots, [1], [0], starting=[0])


def test_states_that_were_given_back_are_not_used(load):
    """A late run is told so."""
    slots = open_states(load(), state_layout())
    slots.close()
    with pytest.raises(GraphFailed, match="given back"):
        step(slots, [1], [0], starting=[0])


@pytest.mark.parametrize("vendor", ["fake"], indirect=True)
def test_too_many_sequences_do_not_fit(load, vendor, tmp_path):
    """Nor does a bad initial value; nothing stays taken."""
    graph = load()
    taken = vendor.used_bytes
    with pytest.raises(OutOfMemory):
        open_states(graph, state_layout(count=1 << 28))
    with pytest.raises(ModelError, match="gone"):
        open_states(graph, state_layout(state("h", file=str(tmp_path / "gone"))))
    assert vendor.used_bytes == taken


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize(
    ("dtype", "width", "moved"),
    [
        ("FP32", 3, torch.int32),
        ("INT64", 1, torch.int64),
        ("FP64", 3, torch.int64),
        ("FP16", 4, torch.int32),
        ("BF16", 2, torch.int32),
        ("UINT16", 2, torch.int32),
        ("BOOL", 8, torch.int32),
        ("FP16", 3, torch.int16),
        ("INT8", 3, torch.uint8),
    ],
)
def test_rows_move_as_what_an_npu_moves_on_its_ai_core(dtype, width, moved, aligned):
    """INT32 or INT64 where their bytes allow it, whatever they hold, and wherever a result begins."""
    vendor = FakeVendor()
    streams = Streams(vendor)
    kinds = []

    def noted(do):
        def call(*tensors):
            kinds.append(tensors[0].dtype)
            do(*tensors)

        return call

    vendor.pick, vendor.put = noted(vendor.pick), noted(vendor.put)
    kind, size = getattr(torch, DATA_TYPES[dtype].torch), DATA_TYPES[dtype].itemsize * width
    buffer = TorchMemory(streams, contextlib.nullcontext).allocate(4 * size, "test")
    order = (2, 0, 3)
    tensor = BoundTensor(
        dtype=DATA_TYPES[dtype],
        shape=(len(order), width),
        copies=tuple(Copy(n * size, buffer, at * size, size) for n, at in enumerate(order)),
    )
    odd = 0 if aligned else 1
    held = torch.arange(odd + len(order) * width) % 2
    result = held.to(kind)[odd:].view(len(order), width)
    with streams.computing():
        copies = BoundCopies.alone(vendor, Bound(inputs={"x": tensor}, outputs={"y": tensor}))
        given = places(vendor, {"x": tensor})
        copies.gather(given)
        copies.scatter({"y": result})
        copies.gather(given)
        vendor.synchronize()
    assert kinds == [moved] * 3
    assert torch.equal(given["x"], result)


@pytest.mark.parametrize("mode", MODES)
def test_states_with_the_batch_inside_stay_on_the_device(vendor, tmp_path, mode):
    """Of a bucket that is captured and of others: each row is in as many parts as lie before it."""
    batch, path = torch.export.Dim("batch", min=1, max=64), tmp_path / "model.pt2"
    examples = torch.zeros(2, WIDTH), torch.zeros(5, 2, WIDTH)
    program = torch.export.export(Stacked(), examples, dynamic_shapes=({0: batch}, {1: batch}))
    known = {"inputs": ["x", "h"], "outputs": ["y", "h_next"]}
    torch.export.save(program, str(path), extra_files={"ge_names.json": json.dumps(known)})
    source = GraphSource.of(path, options=(("torch.mode", mode),))
    graph = AcceleratorGraph(source, Streams(vendor))
    graph.prepare({"x": np.zeros((2, WIDTH), np.float32), "h": np.zeros((5, 2, WIDTH), np.float32)})
    layout = state_layout(replace(state("h", (5, WIDTH)), axis=1))
    with contextlib.closing(open_states(graph, layout)) as slots:
        assert slots.on_device == ("h",)
        assert step(slots, [1, 10], [2, 0], starting=[2, 0]) == [1, 10]
        assert step(slots, [1, 1], [0, 2]) == [11, 2]
        assert step(slots, [1], [0], rows=2) == [12]
        assert step(slots, [1], [2]) == [3]
    graph.close()
