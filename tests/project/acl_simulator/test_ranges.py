"""Range models: free shapes, told by tensor descs."""

import numpy as np
import pytest

from acl_simulator import Kept, Misuse, Ranges, Simulator, StaticV2, Sums
from builders.acl_rig import Rig, ok

FP32, ND = 0, 2


@pytest.fixture
def sums(rig):
    return rig.load(Sums(), Ranges({"x": ((1, 8), 4)}))


def shaped(rig, x):
    """Return a dataset with one input of a described shape."""
    dataset = rig.dataset((rig.device(max(x.nbytes, 1)), x.nbytes))
    rig.fill(dataset, x)
    desc = rig.sim.create_tensor_desc(FP32, list(x.shape), ND)
    assert rig.sim.mdl.set_dataset_tensor_desc(dataset, desc, 0) == (dataset, 0)
    rig.sim.destroy_tensor_desc(desc)
    return dataset


def described(sim, dataset):
    desc = sim.mdl.get_dataset_tensor_desc(dataset, 0)
    assert sim.get_tensor_desc_type(desc) == FP32
    assert sim.get_tensor_desc_format(desc) == ND
    count = sim.get_tensor_desc_num_dims(desc)
    return tuple(ok(sim.get_tensor_desc_dim_v2(desc, at)) for at in range(count))


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_any_shape_within_runs(rig, sim, sums, rows):
    x = np.arange(4 * rows, dtype=np.float32).reshape(rows, 4)
    address = rig.device(32)
    outputs = rig.dataset((address, 32))
    ok(sim.mdl.execute(sums, shaped(rig, x), outputs))
    assert described(sim, outputs) == (rows,)
    assert np.array_equal(rig.download(address, np.float32, rows), x.sum(axis=1))


@pytest.mark.parametrize("shape", [(9, 4), (2, 5), (4,)])
def test_what_is_outside_is_refused(rig, sim, sums, shape):
    x = np.zeros(shape, np.float32)
    assert sim.mdl.execute(sums, shaped(rig, x), rig.dataset((rig.device(64), 64))) == 100000


def test_a_shape_has_to_be_told(rig, sim, sums):
    outputs = rig.dataset((rig.device(64), 64))
    assert sim.mdl.execute(sums, rig.dataset((rig.device(64), 64)), outputs) == 100000
    assert sim.mdl.execute(sums, rig.dataset(), outputs) == 100000


def test_the_runtime_allocates_outputs_of_a_run_that_is_waited_for(rig, sim):
    kept = rig.load(Kept(), Ranges({"x": ((1, -1),)}))
    x = np.array([0, 3, 0, 5], np.float32)
    outputs = rig.dataset((0, 0))
    ok(sim.mdl.execute(kept, shaped(rig, x), outputs))
    address, size = rig.buffer(outputs, 0)
    assert size == 8
    assert described(sim, outputs) == (2,)
    assert np.array_equal(rig.download(address, np.float32, 2), [3, 5])
    assert address in {block.start for block in sim.allocations()}
    ok(sim.rt.free(address))
    ok(sim.update_data_buffer(sim.mdl.get_dataset_buffer(outputs, 0), 0, 0))


def test_on_a_stream_it_does_not(rig, sim, sums):
    inputs = shaped(rig, np.zeros((2, 4), np.float32))
    assert sim.mdl.execute_async(sums, inputs, rig.dataset((0, 0)), rig.stream) == 100000


def test_on_a_stream_the_shape_is_known_after_waiting(rig, sim, sums):
    x = np.ones((3, 4), np.float32)
    outputs = rig.dataset((rig.device(64), 64))
    ok(sim.mdl.execute_async(sums, shaped(rig, x), outputs, rig.stream))
    assert sim.mdl.get_dataset_tensor_desc(outputs, 0) == 0
    ok(sim.rt.synchronize_stream(rig.stream))
    assert described(sim, outputs) == (3,)


def test_a_small_output_is_told_its_need(rig, sim, sums):
    x = np.ones((3, 4), np.float32)
    assert sim.mdl.execute(sums, shaped(rig, x), rig.dataset((rig.device(8), 8))) == 145000
    assert "needs 12 bytes" in sim.get_recent_err_msg()


def test_work_memory_is_taken_for_the_run(rig, sim, sums):
    free = ok(sim.rt.get_mem_info(1))[0]
    inputs = shaped(rig, np.ones((8, 4), np.float32))
    outputs = rig.dataset((rig.device(64), 64))
    held = free - ok(sim.rt.get_mem_info(1))[0]
    ok(sim.mdl.execute(sums, inputs, outputs))
    assert free - ok(sim.rt.get_mem_info(1))[0] == held
    ok(sim.rt.malloc(ok(sim.rt.get_mem_info(1))[0] - 64, 2))
    assert sim.mdl.execute(sums, inputs, outputs) == 500002
    assert "EL0004" in sim.get_recent_err_msg()
    assert [sim.rt.get_last_error(0) for _ in range(2)] == [207001, 0]


def test_a_run_that_is_waited_for_drops_the_code_of_its_failure(rig, sim, sums):
    """Only the thread's last error has it, and the text, behind a stack."""
    inputs = shaped(rig, np.ones((3, 4), np.float32))
    sim.fail("kernel.*", 507015)
    assert sim.mdl.execute(sums, inputs, rig.dataset((rig.device(64), 64))) == 500002
    assert "TraceBack" in (text := sim.get_recent_err_msg())
    assert "reason=aicore exception" in text.partition("TraceBack")[2]
    ok(sim.rt.get_mem_info(1))  # success does not reset it
    assert [sim.rt.get_last_error(0) for _ in range(2)] == [507015, 0]


def test_how_long_a_run_that_is_waited_for_may_take(rig, sim, sums):
    """Where that is said; else it hangs for ever."""
    config = sim.mdl.create_exec_config_handle()
    ok(sim.mdl.set_exec_config_opt(config, 0, 1000))
    inputs = shaped(rig, np.ones((3, 4), np.float32))
    outputs = rig.dataset((rig.device(64), 64))
    ok(sim.mdl.execute_v2(sums, inputs, outputs, 0, config))
    sim.hang()
    assert sim.mdl.execute_v2(sums, inputs, outputs, 0, config) == 500002
    assert sim.rt.get_last_error(0) == 507046
    sim.hang()
    with pytest.raises(Misuse, match="has no timeout"):
        sim.mdl.execute(sums, inputs, outputs)


def test_one_shape_with_a_dynamic_operator_inside_is_run_as_ranges_are(rig, sim):
    model = rig.load(Sums(), StaticV2({"x": (2, 4)}))
    desc = sim.mdl.create_desc()
    ok(sim.mdl.get_desc(desc, model))
    assert ok(sim.mdl.get_output_dims(desc, 0))["dims"] == [2]
    assert sim.mdl.get_cur_output_dims(desc, 0) == ({}, 200001)
    ok(sim.mdl.destroy_desc(desc))
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    inputs, outputs = rig.dataset((rig.device(32), 32)), rig.dataset((rig.device(8), 8))
    rig.fill(inputs, x)
    ok(sim.mdl.execute(model, inputs, outputs))  # nobody has said its shape
    assert described(sim, outputs) == (2,)


def test_old_versions_plan_no_memory_for_ranges(tmp_path):
    sim = Simulator(plans_ranges=False)
    ok(sim.init())
    rig = Rig(sim, tmp_path)
    path = rig.write(Sums(), Ranges({"x": ((1, 9), 4)}))
    assert sim.mdl.query_size(path) == (0, 0, 145000)
    assert sim.mdl.load_from_file_with_mem(path, 0, 0, 0, 0) == (0, 145000)
    ok(sim.mdl.load_from_file(path))
