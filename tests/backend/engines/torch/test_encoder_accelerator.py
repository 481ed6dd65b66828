"""An encoder's checkpoint on an accelerator that is not there, against the same one on the CPU."""

import gc

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from builders.checkpoints import WIDTH, as_sentence_encoder, write_checkpoint  # noqa: E402
from fakes.torch_vendor import FakeVendor  # noqa: E402
from ge_backend.device.base import GraphSource  # noqa: E402
from ge_backend.engines.kinds.cpu import CpuDevice  # noqa: E402
from ge_backend.engines.kinds.cuda import CudaDevice  # noqa: E402
from ge_backend.engines.torch import encoder_accelerator as module  # noqa: E402
from ge_backend.errors import (  # noqa: E402
    ConfigError,
    DeviceFault,
    GraphFailed,
    OutOfMemory,
    Unsupported,
)

LENGTHS = 3, 30, 1, 0, 17, 8
OUTPUT = "sentence_embedding"


@pytest.fixture(autouse=True)
def few_sizes(monkeypatch):
    """So that loading takes a moment only; the longest row is by itself."""
    monkeypatch.setattr(module, "MAX_TOKENS", 24 + module.MIN_ROW)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return as_sentence_encoder(write_checkpoint(tmp_path_factory.mktemp("encoder")))


@pytest.fixture
def vendor():
    return FakeVendor()


@pytest.fixture
def load(vendor):
    """Return what opens a folder on the accelerator, and closes it in the end."""
    device = CudaDevice(vendor)
    opened = []

    def loaded(folder, **options):
        opened.append(device.load(GraphSource.of(folder / "config.json", **options)))
        return opened[-1]

    yield loaded
    for graph in opened:
        graph.close()


def unequal(lengths=LENGTHS):
    """Rows of these lengths; what is masked is garbage."""
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int64)
    ids = np.random.default_rng(2).integers(3, 200, mask.shape)
    return {"input_ids": np.where(mask, ids, 10**9), "attention_mask": mask}


def on_cpu(folder, inputs):
    source = GraphSource.of(folder / "config.json", threads=1, engine="transformers")
    graph = CpuDevice().load(source)
    (found,) = graph.run(inputs, {}, exclusive=False).values()
    graph.close()
    return found


def test_it_gives_what_the_cpu_gives(folder, load):
    """To rows of all lengths, and to one without any token."""
    graph = load(folder)
    assert graph.shape_policy.packed
    found = graph.run(unequal(), {}, exclusive=False)[OUTPUT]
    np.testing.assert_allclose(found, on_cpu(folder, unequal()), atol=1e-5)
    assert not found[LENGTHS.index(0)].any()


@pytest.mark.parametrize(
    ("pooling", "reduced"),
    [("mean_tokens", True), ("cls_token", True), ("lasttoken", True), ("max_tokens", False)],
)
def test_rows_are_reduced_on_the_device(tmp_path, load, pooling, reduced):
    """Where that is a matter of simple operators; the answers are the same."""
    folder = as_sentence_encoder(write_checkpoint(tmp_path), pooling)
    graph = load(folder)
    assert graph._layers.reduced == reduced
    found = graph.run(unequal(), {}, exclusive=False)[OUTPUT]
    np.testing.assert_allclose(found, on_cpu(folder, unequal()), atol=1e-5)


def test_only_rows_that_are_there_come_back(folder, load, vendor):
    """A run has room for an eighth as many rows as tokens, and long texts have far fewer."""
    graph = load(folder)
    graph.run(unequal(), {}, exclusive=False)
    moved = []
    for lengths in ((12, 12), (16, 8)):
        before = vendor.copied_bytes
        graph.run(unequal(lengths), {}, exclusive=False)
        moved.append(vendor.copied_bytes - before)
    before = vendor.copied_bytes
    graph.run(unequal((24,)), {}, exclusive=False)
    assert moved[0] == moved[1] == vendor.copied_bytes - before + graph._encoder.width * 4


@pytest.mark.parametrize("wrong", [1.0, float("nan")])
def test_what_is_made_ready_is_held_against_what_was_checked(folder, load, monkeypatch, wrong):
    """The check at load has seen the layers as they run eagerly, and all their states."""
    monkeypatch.setitem(
        module.REDUCTIONS, "mean", lambda hidden, _, ends: hidden[: len(ends) - 1] * 0 + wrong
    )
    with pytest.raises(Unsupported, match="made ready for cpu, the layers differ by"):
        load(folder)


def test_layers_that_fail_leave_nothing_on_their_modules(folder, load, vendor):
    """What keeps rows apart is on the device."""
    graph = load(folder, options=(("torch.mode", "eager"),))
    modules = list(graph._layers._module.modules())

    def fail(*_, **__):
        raise RuntimeError("fake out of memory")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", fail)
        with pytest.raises(OutOfMemory):
            graph.run(unequal(), {}, exclusive=False)
    assert not any(hasattr(part, "ge_row_attention") for part in modules)


def test_an_output_for_each_token_is_not_reduced(tmp_path, load):
    """All hidden states come to the host."""
    folder = write_checkpoint(tmp_path)
    graph = load(folder)
    assert not graph._layers.reduced
    found = graph.run(unequal(), {}, exclusive=False)["token_embeddings"]
    np.testing.assert_allclose(found, on_cpu(folder, unequal()), atol=1e-5)


def test_a_classifiers_head_stays_on_the_host(tmp_path, load):
    """Pooler and classifier look at one token of each row."""
    folder = write_checkpoint(tmp_path, classifier=True)
    found = load(folder).run(unequal(), {}, exclusive=False)["scores"]
    np.testing.assert_allclose(found, on_cpu(folder, unequal()), atol=1e-5)


def test_all_that_runs_was_captured_at_load(folder, load, vendor, caplog):
    """Whatever the lengths are; nothing is allocated while serving."""
    graph = load(folder)
    before = vendor.counts.copy()
    for lengths in ((1,), (5, 9), LENGTHS, (30, 30), tuple(range(1, 31))):
        graph.run(unequal(lengths), {}, exclusive=False)
    assert vendor.counts["allocate", ""] == before["allocate", ""]
    assert vendor.counts["capture", "compute"] == before["capture", "compute"]
    assert vendor.counts["replay", "compute"] > before["replay", "compute"]
    assert "eagerly" not in caplog.text


def test_a_run_is_as_many_replays_as_it_has_pieces(folder, load, vendor):
    """Whole rows, shortest first, up to so many tokens; none for a batch without tokens."""
    graph = load(folder)
    for lengths, chunks in (
        ((8, 8, 8), 1),
        ((8, 8, 9), 2),
        ((30,), 1),
        ((30, 30, 1), 3),
        ((0,), 0),
    ):
        before = vendor.counts["replay", "compute"]
        graph.run(unequal(lengths), {}, exclusive=False)
        assert vendor.counts["replay", "compute"] - before == chunks, lengths


def test_nothing_is_captured_where_that_is_asked_for(folder, load, vendor):
    """`torch.mode` is the option of all torch models on accelerators."""
    graph = load(folder, options=(("torch.mode", "eager"),))
    found = graph.run(unequal(), {}, exclusive=False)[OUTPUT]
    np.testing.assert_allclose(found, on_cpu(folder, unequal()), atol=1e-5)
    assert vendor.counts["capture", "compute"] == 0
    with pytest.raises(ConfigError, match="expected one of graphs, eager, torchair"):
        load(folder, options=(("torch.mode", "fast"),))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precisions_are_near(folder, load, precision):
    """The weights are of that type, and answers FP32."""
    found = load(folder, precision=precision).run(unequal(), {}, exclusive=False)[OUTPUT]
    assert found.dtype == np.float32
    apart = np.abs(found - on_cpu(folder, unequal())).max()
    assert 0 < apart < 0.05


@pytest.mark.parametrize("wrong", [-1, 200, 2**40])
def test_a_token_outside_of_the_vocabulary_does_not_reach_the_device(folder, load, vendor, wrong):
    """An accelerator breaks when it reads there; the next run is right."""
    graph = load(folder)
    before = vendor.counts["replay", "compute"]
    inputs = unequal((3, 4))
    inputs["input_ids"][1, 2] = wrong
    with pytest.raises(GraphFailed, match=rf"idx={wrong} must be within .*\[0,199\]"):
        graph.run(inputs, {}, exclusive=False)
    assert vendor.counts["replay", "compute"] == before
    found = graph.run(unequal(), {}, exclusive=False)[OUTPUT]
    np.testing.assert_allclose(found, on_cpu(folder, unequal()), atol=1e-5)


def test_a_row_that_is_longer_than_positions_does_not_reach_the_device(folder, load, vendor):
    """Its last tokens would have positions that are in no table."""
    graph = load(folder)
    before = vendor.counts["replay", "compute"]
    with pytest.raises(GraphFailed, match="a row of 33 tokens; the model takes 32"):
        graph.run(unequal((2, 33)), {}, exclusive=False)
    assert vendor.counts["replay", "compute"] == before


def test_results_go_where_they_are_wanted(folder, load):
    """Into an array that fits; a later run does not write there."""
    graph = load(folder)
    place = np.zeros((len(LENGTHS), WIDTH), np.float32)
    assert graph.run(unequal(), {OUTPUT: place}, exclusive=False)[OUTPUT] is place
    kept = place.copy()
    graph.run(unequal((4,) * len(LENGTHS)), {}, exclusive=False)
    np.testing.assert_array_equal(place, kept)


def test_scratch_is_the_largest_pieces(folder, load, vendor):
    """Known as soon as it is loaded; preparing a shape adds nothing."""
    graph = load(folder)
    shapes = {"input_ids": (1, 4), "attention_mask": (1, 4)}
    assert graph.workspace_bytes(shapes) == vendor.scratch_bytes
    before = vendor.counts.copy()
    graph.prepare(unequal((4,)))
    assert vendor.counts == before


def test_a_device_that_is_too_small_says_so(folder):
    """As a fault of memory, not of the checkpoint; nothing is held then."""
    vendor = FakeVendor()
    run = torch.nn.functional.scaled_dot_product_attention

    def too_much(*given, **options):
        raise RuntimeError("fake out of memory: tried to allocate")

    torch.nn.functional.scaled_dot_product_attention = too_much
    try:
        with pytest.raises(OutOfMemory, match="fake out of memory"):
            CudaDevice(vendor).load(GraphSource.of(folder / "config.json"))
    finally:
        torch.nn.functional.scaled_dot_product_attention = run
    gc.collect()
    assert vendor.used_bytes == 0


@pytest.mark.parametrize(
    ("text", "kind"), [("fake out of memory", OutOfMemory), ("fake fault: gone", DeviceFault)]
)
@pytest.mark.parametrize("at", ["weights", "wait"])
def test_layers_that_do_not_reach_the_device(folder, vendor, monkeypatch, at, text, kind):
    """It is not the checkpoint's fault, and no other file of it would help."""

    def broken(*given):
        raise RuntimeError(text)

    if at == "weights":
        monkeypatch.setattr(module.MaskedLayers, "to", broken)
    else:
        monkeypatch.setattr(vendor, "synchronize", broken)
    with pytest.raises(kind, match=text) as raised:
        CudaDevice(vendor).load(GraphSource.of(folder / "config.json"))
    assert "ge-backend import" not in str(raised.value)
    assert "does not run it" not in str(raised.value)


def test_closing_gives_all_memory_back(folder, vendor):
    """Buffers of all captured sizes."""
    graph = CudaDevice(vendor).load(GraphSource.of(folder / "config.json"))
    graph.run(unequal(), {}, exclusive=False)
    assert vendor.used_bytes > 0
    graph.close()
    gc.collect()
    assert vendor.used_bytes == 0
