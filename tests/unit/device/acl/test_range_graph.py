"""A graph whose shapes are said with each run; contract tests run it in every shape and type."""

import numpy as np
import pytest

from acl_simulator import Encoder, Kept, Ranges, Sums
from builders.npu import Npu, floats, run, tokens
from ge_backend.errors import DeviceFault, GraphFailed, ModelError, OutOfMemory

NAMED = {"x": ["batch", "length"], "y": ["batch"]}
FREE = Ranges({"x": ((1, 64), (1, 64))})


def test_any_shape_within_the_ranges_runs(npu):
    """Larger and smaller ones, in any order."""
    graph = npu.load(npu.write(Sums(), FREE, axes=NAMED))
    assert graph.signature.axis_limits == {"batch": 64, "length": 64}
    for shape in ((2, 3), (64, 64), (1, 1), (5, 7)):
        x = floats(*shape)
        assert np.array_equal(run(graph, x=x)["y"], x.sum(axis=1, dtype=np.float32))


def test_a_shape_outside_is_refused(npu):
    """By ACL; the graph runs on."""
    graph = npu.load(npu.write(Sums(), FREE, axes=NAMED))
    with pytest.raises(GraphFailed, match="is not within"):
        run(graph, x=floats(65, 2))
    assert run(graph, x=floats(6, 2))["y"].shape == (6,)


def test_prepared_shapes_allocate_nothing_more(npu):
    """Warm-up makes room for the largest; smaller ones fit."""
    graph = npu.load(npu.write(Sums(), FREE, axes=NAMED))
    graph.prepare({"x": floats(64, 64)})
    before = npu.sim.calls.copy()
    for shape in ((64, 64), (3, 5)):
        run(graph, x=floats(*shape))
    made = npu.sim.calls - before
    assert not [name for name in made if "malloc" in name]
    assert made["mdl.execute_async"] == 2


def test_without_names_acl_finds_memory_for_outputs(npu):
    """At the cost of holding everything up; it is given back each time."""
    graph = npu.load(npu.write(Sums(), FREE))
    assert graph.signature.output("y").describe() == "FP32 [?]"
    before = [block.size for block in npu.sim.allocations()]
    for shape in ((2, 3), (9, 4)):
        x = floats(*shape)
        assert np.array_equal(run(graph, x=x)["y"], x.sum(axis=1, dtype=np.float32))
    assert npu.sim.calls["mdl.execute"] == 2
    assert npu.sim.calls["mdl.execute_async"] == 0
    assert len(npu.sim.allocations()) == len(before)


def test_an_output_of_any_number_of_dimensions(npu, monkeypatch):
    """Names say how many there are; ACL does not."""
    monkeypatch.setattr(npu.device._device.models, "output_dims", lambda *_: (-2,))
    path = npu.write(Sums(), FREE)
    with pytest.raises(ModelError, match=r"'y' may have any number .* in model\.om\.json: .*\"y\""):
        npu.load(path)
    graph = npu.load(npu.write(Sums(), FREE, axes={"x": ["batch", "length"], "y": ["batch"]}))
    assert graph.signature.output("y").describe() == "FP32 [batch]"
    x = floats(3, 5)
    assert np.array_equal(run(graph, x=x)["y"], x.sum(axis=1, dtype=np.float32))


def test_a_size_that_only_the_run_tells(npu):
    """Even nothing at all."""
    graph = npu.load(npu.write(Kept("INT64"), Ranges({"x": ((1, 64),)}), axes={"x": ["n"]}))
    for x in map(np.array, ([1, 0, 2], [0, 0], [5])):
        assert run(graph, x=x)["y"].tolist() == x[x != 0].tolist()


def test_names_that_are_not_true_are_found_out(npu):
    """The shape that a run gives is compared with what the names say."""
    wrong = {"x": ["batch", "length"], "y": ["length"]}
    graph = npu.load(npu.write(Sums(), FREE, axes=wrong))
    assert run(graph, x=floats(4, 4))["y"].shape == (4,)
    with pytest.raises(GraphFailed, match=r"came as .*\(2,\).*names of its dimensions say.*\(7,\)"):
        run(graph, x=floats(2, 7))


def test_inputs_of_one_axis_must_agree(npu):
    """What the names call equal is equal."""
    axes = dict.fromkeys(("input_ids", "attention_mask"), ("batch", "length"))
    pairs = Ranges(dict.fromkeys(axes, ((1, 8), (1, 64))))
    graph = npu.load(npu.write(Encoder(), pairs, axes={**axes, "y": ["batch", ""]}))
    inputs = tokens(3, 7)
    assert np.array_equal(run(graph, **inputs)["y"], Encoder().expected(**inputs)["y"])
    with pytest.raises(GraphFailed, match="length is 7 in another input"):
        run(graph, **{**inputs, "attention_mask": tokens(3, 9)["attention_mask"]})


def test_an_input_and_an_output_may_have_one_name(npu):
    """Their slots are apart."""
    graph = npu.load(npu.write(Sums(), FREE, output_names="x"))
    for shape in ((2, 3), (9, 40)):
        x = floats(*shape)
        assert np.array_equal(run(graph, x=x)["x"], x.sum(axis=1, dtype=np.float32))


def test_no_room_for_larger_slots_leaves_those_of_before(tmp_path):
    """The shape is refused, smaller ones run on."""
    npu = Npu(tmp_path, hbm_bytes=1 << 16)
    path = npu.write(Sums(), Ranges({"x": ((1, -1), (1, -1))}), axes=NAMED)
    graph = npu.load(path)
    with pytest.raises(OutOfMemory, match="the inputs of"):
        run(graph, x=floats(256, 256))
    x = floats(3, 4)
    assert np.array_equal(run(graph, x=x)["y"], x.sum(axis=1, dtype=np.float32))
    npu.close()


@pytest.mark.parametrize("call", ["rt.memcpy_async", "mdl.get_dataset_tensor_desc"])
def test_a_failure_after_acl_found_memory_gives_it_back(npu, call):
    """The run is over by then, its outputs are there and nobody has fetched them."""
    graph = npu.load(npu.write(Sums(), FREE))
    run(graph, x=floats(2, 2))
    before = len(npu.sim.allocations())
    npu.sim.fail(call, 100000, after=1 if "memcpy" in call else 0)
    with pytest.raises(GraphFailed):
        run(graph, x=floats(2, 2))
    assert len(npu.sim.allocations()) == before
    assert run(graph, x=floats(2, 2))["y"].shape == (2,)


def test_a_device_that_breaks_after_acl_found_memory(npu):
    """It is given back when the graph is closed."""
    graph = npu.load(npu.write(Sums(), FREE))
    npu.sim.fail("rt.memcpy_async", 507899, after=1)
    npu.sim.fail("rt.synchronize_stream_with_timeout", 507899, after=1)
    with pytest.raises(DeviceFault):
        run(graph, x=floats(2, 2))
