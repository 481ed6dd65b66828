"""A graph whose shapes are said with each run; contract tests run it in every shape and type."""

import numpy as np
import pytest

from acl_simulator import Echo, Encoder, Kept, Ranges, Sums
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
    assert npu.sim.calls["mdl.execute_v2"] == 2
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


WITHOUT = pytest.mark.parametrize("without", [(), ("rt.get_last_error",)], ids=["new", "old"])


@WITHOUT
@pytest.mark.parametrize("axes", [NAMED, None], ids=["queued", "at once"])
def test_no_work_memory_is_told_as_that(tmp_path, without, axes):
    """RuntimeV2 says only that it failed; the thread's last error says why, or else the text."""
    npu = Npu(tmp_path, hbm_bytes=7 << 20, without=without)
    graph = npu.load(npu.write(Sums(), Ranges({"x": ((1, 1024), (1, 1024))}), axes=axes))
    with pytest.raises(OutOfMemory, match="500002"):
        run(graph, x=floats(1024, 600))
    assert run(graph, x=floats(2, 3))["y"].shape == (2,)
    npu.close()


@WITHOUT
@pytest.mark.parametrize("code", [507014, 507015])
def test_a_core_that_breaks_in_a_run_at_once_is_a_fault(tmp_path, without, code):
    """Though RuntimeV2 says only that it failed; the device is given up."""
    npu = Npu(tmp_path, without=without)
    graph = npu.load(npu.write(Kept("INT64"), Ranges({"x": ((1, 64),)})))
    npu.sim.fail("kernel.*", code)
    with pytest.raises(DeviceFault, match="500002"):
        run(graph, x=np.array([1, 0, 3]))
    with pytest.raises(DeviceFault, match="not used again"):
        run(graph, x=np.array([1, 0, 3]))
    npu.close()


def test_an_earlier_error_of_the_thread_is_not_the_runs(npu):
    """It is forgotten before the run, which success does not do."""
    graph = npu.load(npu.write(Sums(), FREE, axes=NAMED))
    npu.sim.fail("rt.malloc", 507899)
    with pytest.raises(DeviceFault):
        npu.device._device.runtime.allocate(64)
    npu.sim.fail("mdl.execute_async", 500002)
    with pytest.raises(GraphFailed):
        run(graph, x=floats(2, 3))


@WITHOUT
def test_a_run_at_once_that_hangs_is_a_fault_after_its_time(tmp_path, without):
    """Although ACL waits for it."""
    npu = Npu(tmp_path, without=without)
    path = npu.write(Kept("INT64"), Ranges({"x": ((1, 64),)}))
    graph = npu.load(path, **{"npu.timeout_s": "0.2"})
    assert run(graph, x=np.array([1, 0, 3]))["y"].tolist() == [1, 3]
    npu.sim.hang()
    with pytest.raises(DeviceFault, match="500002"):
        run(graph, x=np.array([1, 0, 3]))
    npu.close()


def test_an_old_cann_runs_at_once_without_a_limit(tmp_path):
    """Its pyACL has no call that takes one."""
    npu = Npu(tmp_path, without=("mdl.execute_v2",))
    graph = npu.load(npu.write(Kept("INT64"), Ranges({"x": ((1, 64),)})))
    assert run(graph, x=np.array([1, 0, 3]))["y"].tolist() == [1, 3]
    assert npu.sim.calls["mdl.execute"] == 1
    npu.close()


def test_larger_slots_need_no_room_beside_those_before(tmp_path):
    """What fits alone fits after something smaller, too."""
    npu = Npu(tmp_path, hbm_bytes=45 << 20)
    axes = {name: ["batch", "", "height", "width"] for name in "xy"}
    images = Ranges({"x": ((1, 4), 3, (1, 4096), (1, 4096))})
    graph = npu.load(npu.write(Echo(), images, axes=axes))
    for width in (768, 1024):
        assert run(graph, x=floats(1, 3, 1024, width))["y"].shape == (1, 3, 1024, width)
    npu.close()


def test_slots_that_another_model_took_meanwhile_are_asked_for_again(npu):
    """Neither those that are wanted nor those of before: the next run tries once more."""
    graph = npu.load(npu.write(Sums(), FREE, axes=NAMED))
    run(graph, x=floats(2, 2))
    npu.sim.fail("rt.malloc", 207001, times=2)
    with pytest.raises(OutOfMemory, match="the inputs of"):
        run(graph, x=floats(64, 64))
    npu.sim.fail("rt.malloc_host", 207001)
    with pytest.raises(OutOfMemory, match="the inputs of"):
        run(graph, x=floats(2, 2))
    for shape in ((2, 2), (64, 64)):
        assert run(graph, x=floats(*shape))["y"].shape == shape[:1]


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
