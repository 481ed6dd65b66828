"""Data buffers, tensor descs, datasets, and conversions."""

import numpy as np
import pytest

from acl_simulator import Misuse
from builders.acl_rig import ok


def test_a_data_buffer_only_records(rig, sim):
    address = rig.device(64)
    buffer = sim.create_data_buffer(address, 64)
    assert (sim.get_data_buffer_addr(buffer), sim.get_data_buffer_size(buffer)) == (address, 64)
    ok(sim.update_data_buffer(buffer, 0, 2**33))
    assert sim.get_data_buffer_size(buffer) == 0  # 32 bits
    assert sim.get_data_buffer_size_v2(buffer) == 2**33
    ok(sim.destroy_data_buffer(buffer))
    ok(sim.rt.free(address))
    with pytest.raises(Misuse, match="destroyed twice"):
        sim.destroy_data_buffer(buffer)


def test_a_handle_is_of_one_kind(sim):
    with pytest.raises(Misuse, match="is not a dataset but data buffer"):
        sim.mdl.destroy_dataset(sim.create_data_buffer(0, 0))
    with pytest.raises(Misuse, match="but nothing"):
        sim.mdl.get_dataset_num_buffers(12345)


def test_a_dataset_lists_buffers(sim):
    dataset = sim.mdl.create_dataset()
    buffers = [sim.create_data_buffer(64 * at, 64) for at in range(2)]
    for buffer in buffers:
        assert sim.mdl.add_dataset_buffer(dataset, buffer) == (dataset, 0)
    assert sim.mdl.add_dataset_buffer(dataset, 0) == (dataset, 100000)
    assert sim.mdl.get_dataset_num_buffers(dataset) == 2
    assert [sim.mdl.get_dataset_buffer(dataset, at) for at in range(3)] == [*buffers, 0]
    ok(sim.mdl.destroy_dataset(dataset))
    ok(sim.destroy_data_buffer(buffers[0]))


def test_a_dataset_owns_copies_of_descs(sim):
    dataset = sim.mdl.create_dataset()
    ok(sim.mdl.add_dataset_buffer(dataset, sim.create_data_buffer(0, 0)))
    desc = sim.create_tensor_desc(0, [2], 2)
    assert sim.mdl.set_dataset_tensor_desc(dataset, desc, 1) == (dataset, 100000)
    assert sim.mdl.set_dataset_tensor_desc(dataset, desc, 0) == (dataset, 0)
    copy = sim.mdl.get_dataset_tensor_desc(dataset, 0)
    assert copy not in (0, desc)
    assert sim.mdl.set_dataset_tensor_desc(dataset, 0, 0) == (dataset, 0)
    assert sim.mdl.get_dataset_tensor_desc(dataset, 0) == 0
    with pytest.raises(Misuse, match="after it was destroyed"):
        sim.get_tensor_desc_type(copy)


def test_a_tensor_desc_tells_its_shape(sim):
    desc = sim.create_tensor_desc(1, [2, 3], 2)
    assert sim.get_tensor_desc_element_count(desc) == 6
    assert sim.get_tensor_desc_size(desc) == 12
    assert sim.get_tensor_desc_num_dims(desc) == 2
    assert sim.get_tensor_desc_dim(desc, 1) == 3
    assert sim.get_tensor_desc_dim_v2(desc, 2) == (0, 100000)
    assert sim.create_tensor_desc(5, [1], 2) == 0
    with pytest.raises(TypeError):
        sim.create_tensor_desc(0, (2, 3), 2)


class TestUtil:
    def test_bytes_and_pointers(self, sim):
        data = b"0123456789"
        assert sim.util.ptr_to_bytes(sim.util.bytes_to_ptr(data), 4) == b"0123"
        with pytest.raises(ValueError, match="bytes are required"):
            sim.util.bytes_to_ptr(bytearray(data))

    def test_arrays_and_pointers(self, sim):
        array = np.arange(6, dtype=np.float32)
        with pytest.warns(DeprecationWarning, match="is deprecated"):
            pointer = sim.util.numpy_to_ptr(array)
        with pytest.warns(DeprecationWarning, match="is deprecated"):
            view = sim.util.ptr_to_numpy(pointer, (2, 3), np.dtype(np.float32).num)
        array[5] = 9
        assert view[1, 2] == 9

    def test_arrays_are_contiguous(self, sim):
        array = np.arange(6).reshape(2, 3).T
        with (
            pytest.raises(Misuse, match="not contiguous"),
            pytest.warns(DeprecationWarning, match="is deprecated"),
        ):
            sim.util.numpy_to_ptr(array)
        pointer, contiguous = sim.util.numpy_contiguous_to_ptr(array)
        assert pointer == contiguous.ctypes.data
        assert np.array_equal(contiguous, array)

    def test_the_host_does_not_read_device_memory(self, rig, sim):
        address = rig.device(64)
        with pytest.raises(Misuse, match="would crash"):
            sim.util.ptr_to_bytes(address, 4)
        with (
            pytest.raises(Misuse, match="would crash"),
            pytest.warns(DeprecationWarning, match="is deprecated"),
        ):
            sim.util.ptr_to_numpy(address, (4,), np.dtype(np.uint8).num)
