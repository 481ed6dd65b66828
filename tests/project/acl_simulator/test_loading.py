"""Loading: the runtime's memory, the caller's memory, configurations, bundles."""

from pathlib import Path

import numpy as np
import pytest

from acl_simulator import Affine, MatMul, Misuse, Ranges, Simulator, Static, write_bundle
from acl_simulator.codes import ConfigAttribute as A
from acl_simulator.codes import LoadType
from builders.acl_rig import H2D, Rig, ok

STATIC = Static({"x": (2, 8)})
X = np.arange(16, dtype=np.float32).reshape(2, 8)
EXPECTED = MatMul().expected(x=X)["y"]


@pytest.fixture
def path(rig):
    return rig.write(MatMul(), STATIC, "matmul")


@pytest.fixture
def in_memory(rig, path):
    """Address and size of the file's bytes."""
    data = Path(path).read_bytes()
    address, view = rig.pinned(len(data))
    view[:] = bytearray(data)
    return address, len(data)


def answers(rig, model):
    return np.array_equal(rig.run(model, {"x": X})[0], EXPECTED)


def test_the_runtime_takes_memory_and_gives_it_back(rig, sim, path):
    before = ok(sim.rt.get_mem_info(1))[0]
    model = ok(sim.mdl.load_from_file(path))
    assert ok(sim.rt.get_mem_info(1))[0] < before
    assert sim.allocations() == []
    ok(sim.mdl.unload(model))
    assert ok(sim.rt.get_mem_info(1))[0] == before
    assert sim.mdl.unload(model) == 145003


def test_a_model_is_loaded_from_memory(rig, sim, in_memory):
    assert ok(sim.mdl.query_size_from_mem(*in_memory)) == (64, 128)
    assert answers(rig, ok(sim.mdl.load_from_mem(*in_memory)))
    assert sim.mdl.load_from_mem(in_memory[0], 0) == (0, 145006)
    assert sim.mdl.load_from_mem(0, 5) == (0, 100000)


def test_a_model_is_not_loaded_from_device_memory(rig, sim):
    with pytest.raises(Misuse, match="device memory"):
        sim.mdl.load_from_mem(rig.device(64), 64)


def test_the_caller_gives_memory(rig, sim, path, in_memory):
    work, weights = rig.device(64), rig.device(128)
    one = ok(sim.mdl.load_from_file_with_mem(path, work, 64, weights, 128))
    two = ok(sim.mdl.load_from_mem_with_mem(*in_memory, work, 64, weights, 128))
    assert answers(rig, one)
    assert answers(rig, two)


@pytest.mark.parametrize(("work", "weight"), [(63, 128), (64, 127)])
def test_too_little_memory_is_refused(rig, sim, path, work, weight):
    result = sim.mdl.load_from_file_with_mem(path, rig.device(64), work, rig.device(128), weight)
    assert result == (0, 145000)


def test_given_memory_is_on_the_device_and_aligned(rig, sim, path):
    with pytest.raises(Misuse, match="not on device 0"):
        sim.mdl.load_from_file_with_mem(path, rig.pinned(64)[0], 64, 0, 0)
    with pytest.raises(Misuse, match="64-byte aligned"):
        sim.mdl.load_from_file_with_mem(path, rig.device(256) + 32, 128, 0, 0)
    with pytest.raises(Misuse, match="bytes after"):
        sim.mdl.load_from_file_with_mem(path, rig.device(64), 128, 0, 0)


def test_a_slice_has_room_behind(rig, sim, path):
    block = rig.device(192)  # and 64 more, which are the block's own room
    ok(sim.mdl.load_from_file_with_mem(path, block + 128, 64, 0, 0))
    weights = rig.device(192)
    with pytest.raises(Misuse, match="its work memory overlaps its weights"):
        sim.mdl.load_from_file_with_mem(path, weights, 64, weights + 64, 128)


def test_given_memory_stays_while_the_model_does(rig, sim, path):
    work = rig.device(64)
    model = ok(sim.mdl.load_from_file_with_mem(path, work, 64, 0, 0))
    with pytest.raises(Misuse, match="still loaded"):
        sim.rt.free(work)
    ok(sim.mdl.unload(model))
    ok(sim.rt.free(work))


def test_different_models_do_not_share_weights(rig, sim, path):
    other = rig.write(MatMul(seed=2), STATIC, "other")
    weights = rig.device(128)
    ok(sim.mdl.load_from_file_with_mem(path, 0, 0, weights, 128))
    with pytest.raises(Misuse, match="overwrite the weight memory of matmul"):
        sim.mdl.load_from_file_with_mem(other, 0, 0, weights, 128)


def test_nobody_works_on_weights(rig, sim, path):
    memory = rig.device(128)
    ok(sim.mdl.load_from_file_with_mem(path, 0, 0, memory, 128))
    with pytest.raises(Misuse, match="the work memory of matmul overlaps the weight memory"):
        sim.mdl.load_from_file_with_mem(path, memory, 64, 0, 0)


def test_a_range_model_ignores_given_work_memory(rig, sim):
    path = rig.write(Affine(), Ranges({"x": ((1, 8),)}))
    ok(sim.mdl.load_from_file_with_mem(path, 12345, 64, 0, 0))


def test_the_device_may_be_too_small(tmp_path):
    sim = Simulator(hbm_bytes=1024)
    ok(sim.init())
    rig = Rig(sim, tmp_path)
    path = rig.write(Affine(), STATIC, work_bytes=2048)
    free = ok(sim.rt.get_mem_info(1))[0]
    assert sim.mdl.load_from_file(path) == (0, 245000)
    assert ok(sim.rt.get_mem_info(1))[0] == free


def test_load_and_unload_are_in_one_context(rig, sim, path):
    model = ok(sim.mdl.load_from_file(path))
    datasets = rig.datasets(model)
    ok(sim.rt.create_context(0))
    assert sim.mdl.unload(model) == 107004
    assert sim.mdl.execute(model, *datasets) == 107004


def test_a_model_in_flight_is_not_unloaded(rig, sim, path):
    model = ok(sim.mdl.load_from_file(path))
    ok(sim.mdl.execute_async(model, *rig.datasets(model), rig.stream))
    with pytest.raises(Misuse, match="unload"):
        sim.mdl.unload(model)


class TestConfigured:
    def load(self, sim, options):
        handle = sim.mdl.create_config_handle()
        for attribute, value in options.items():
            ok(sim.mdl.set_config_opt(handle, attribute, value))
        result = sim.mdl.load_with_config(handle)
        ok(sim.mdl.destroy_config_handle(handle))
        return result

    def test_from_a_file(self, rig, sim, path):
        options = {A.LOAD_TYPE: LoadType.FROM_FILE.value, A.PATH: path}
        assert answers(rig, ok(self.load(sim, options)))

    def test_from_memory(self, rig, sim, in_memory):
        address, size = in_memory
        options = {
            A.LOAD_TYPE: LoadType.FROM_MEM.value,
            A.MEM_ADDRESS: address,
            A.MEM_SIZE: size,
        }
        assert answers(rig, ok(self.load(sim, options)))

    def test_with_given_memory(self, rig, sim, path):
        work = rig.device(64)
        options = {
            A.LOAD_TYPE: LoadType.FROM_FILE_WITH_MEM.value,
            A.PATH: path,
            A.WORKSPACE_ADDRESS: work,
            A.WORKSPACE_SIZE: 64,
        }
        assert answers(rig, ok(self.load(sim, options)))
        with pytest.raises(Misuse, match="still loaded"):
            sim.rt.free(work)

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {A.LOAD_TYPE: 0},
            {A.LOAD_TYPE: 7},
            {A.LOAD_TYPE: 1},
            {A.LOAD_TYPE: 3, A.MEM_SIZE: 5},
            {A.LOAD_TYPE: 1, A.PATH: "m.om", A.WEIGHT_PATH: None},
        ],
        ids=str,
    )
    def test_what_is_missing_or_too_much(self, rig, sim, options):
        pointer = sim.util.bytes_to_ptr(b"weights\0")
        given = {key: pointer if value is None else value for key, value in options.items()}
        assert self.load(sim, given) == (0, 100000)

    def test_values_have_types(self, rig, sim):
        handle = sim.mdl.create_config_handle()
        with pytest.raises(TypeError, match="set_config_opt args parse failed"):
            sim.mdl.set_config_opt(handle, A.PATH, 5)
        with pytest.raises(TypeError, match="set_config_opt args parse failed"):
            sim.mdl.set_config_opt(handle, A.WORKSPACE_SIZE, np.int64(5))
        assert sim.mdl.set_config_opt(handle, A.WORKSPACE_MEM_OPTIMIZE, 2) == 100000


class TestBundles:
    @pytest.fixture
    def bundle(self, rig, path):
        other = rig.write(Affine(), STATIC, "affine")
        return write_bundle(rig.folder / "both.om", [rig.folder / "matmul.om", rig.folder / other])

    def test_its_models_run(self, rig, sim, bundle):
        number = ok(sim.mdl.bundle_load_from_file(str(bundle)))
        assert ok(sim.mdl.bundle_get_model_num(number)) == 2
        first = ok(sim.mdl.bundle_get_model_id(number, 0))
        assert answers(rig, first)
        assert sim.mdl.unload(first) == 100000
        ok(sim.mdl.bundle_unload(number))
        assert sim.mdl.bundle_get_model_num(number) == (0, 100011)

    def test_from_memory(self, rig, sim, bundle):
        data = bundle.read_bytes()
        number = ok(sim.mdl.bundle_load_from_mem(sim.util.bytes_to_ptr(data), len(data)))
        assert sim.mdl.bundle_get_model_id(number, 2) == (0, 100000)

    def test_a_model_is_no_bundle(self, sim, path):
        assert sim.mdl.bundle_load_from_file(path) == (0, 100003)
        assert sim.mdl.bundle_load_from_file("missing") == (0, 145002)


def test_loading_over_what_is_in_flight_is_misuse(rig, sim, path):
    memory = rig.device(128)
    source, _ = rig.pinned(128)
    ok(sim.rt.memcpy_async(memory, 128, source, 128, H2D, rig.stream))
    with pytest.raises(Misuse, match="being loaded"):
        sim.mdl.load_from_file_with_mem(path, 0, 0, memory, 128)


def test_a_part_of_a_device_lacks_tasks(tmp_path):
    sim = Simulator(vnpu=True)
    ok(sim.init())
    rig = Rig(sim, tmp_path)
    path = rig.write(Affine(), Static({"x": (2,)}))
    assert sim.mdl.load_from_file(path) == (0, 507009)
    ok(sim.mdl.load_from_file(rig.write(Affine(), Static({"x": (2,)}), vnpu=True)))
