"""Copies go where their kind says, and wait for nobody."""

import numpy as np
import pytest

from acl_simulator import Affine, MatMul, Misuse, Static
from builders.acl_rig import D2H, H2D, ok

H2H, D2D, DEFAULT = 0, 3, 4


def test_copies_carry_bytes_every_way(rig, sim):
    source, view = rig.pinned(64)
    view[:] = np.arange(64)
    one, two = rig.device(64), rig.device(64)
    target, result = rig.pinned(64)
    ok(sim.rt.memcpy(one, 64, source, 64, H2D))
    ok(sim.rt.memcpy(two, 64, one, 64, D2D))
    ok(sim.rt.memcpy(target, 64, two, 64, DEFAULT))
    assert np.array_equal(result, view)
    ok(sim.rt.memcpy(target, 64, source, 32, H2H))
    assert (sim.uploaded_bytes, sim.downloaded_bytes) == (64, 64)


@pytest.mark.parametrize("kind", [H2H, D2H, D2D, 9])
def test_the_kind_has_to_be_right(rig, sim, kind):
    source, _ = rig.pinned(64)
    assert sim.rt.memcpy(rig.device(64), 64, source, 64, kind) == 107000
    assert "HOST_TO_DEVICE" in sim.get_recent_err_msg()


@pytest.mark.parametrize("size", [0, 65])
def test_the_size_has_to_fit(rig, sim, size):
    source, _ = rig.pinned(128)
    address = rig.device(128)
    assert sim.rt.memcpy(address, 64, source, size, H2D) == 107000
    assert sim.rt.memset(address, 64, 0, size) == 107000


def test_null_is_no_address(rig, sim):
    assert sim.rt.memcpy(0, 64, rig.device(64), 64, H2D) == 100000
    assert sim.rt.memcpy(rig.device(64), 64, 0, 64, H2D) == 100000


def test_a_copy_may_take_pageable_memory_only_at_once(rig, sim):
    array = np.ones(64, np.uint8)
    address = rig.device(64)
    rig.upload(address, array)
    with pytest.raises(Misuse, match="malloc_host did not give"):
        sim.rt.memcpy_async(address, 64, array.ctypes.data, 64, H2D, rig.stream)


def test_async_copies_are_aligned(rig, sim):
    source, _ = rig.pinned(128)
    with pytest.raises(Misuse, match="not 64-byte aligned"):
        sim.rt.memcpy_async(rig.device(64), 64, source + 4, 8, H2D, rig.stream)


def test_async_copies_are_not_from_host_to_host(rig, sim):
    source, _ = rig.pinned(64)
    target, _ = rig.pinned(64)
    assert sim.rt.memcpy_async(target, 64, source, 64, H2H, rig.stream) == 207000


def test_a_copy_at_once_does_not_wait_for_the_stream(rig, sim):
    source, _ = rig.pinned(64)
    target, _ = rig.pinned(64)
    address = rig.device(64)
    ok(sim.rt.memcpy_async_with_condition(address, 64, source, 64, H2D, rig.stream))
    with pytest.raises(Misuse, match="still in flight"):
        sim.rt.memcpy(target, 64, address, 64, D2H)


def test_memory_is_filled(rig, sim):
    address = rig.device(64)
    ok(sim.rt.memset(address, 64, 0, 64))
    ok(sim.rt.memset_async(address, 64, 7, 32, rig.stream))
    ok(sim.rt.synchronize_stream(rig.stream))
    assert rig.download(address, np.uint8, 64).tolist() == [7] * 32 + [0] * 32


def test_weights_are_not_overwritten(rig, sim):
    path = rig.write(MatMul(), Static({"x": (2, 8)}))
    work, weight = ok(sim.mdl.query_size(path))
    weights = rig.device(weight)
    ok(sim.mdl.load_from_file_with_mem(path, rig.device(work), work, weights, weight))
    with pytest.raises(Misuse, match="memset overwrites the weight memory of model"):
        sim.rt.memset(weights, weight, 0, weight)
    with pytest.raises(Misuse, match="memcpy overwrites the weight memory of model"):
        rig.upload(weights, np.zeros(4, np.float32))


def test_memory_between_runs_is_free_for_others(rig, sim):
    path = rig.write(Affine(), Static({"x": (8,)}))
    size, _ = ok(sim.mdl.query_size(path))
    work = rig.device(size)
    ok(sim.mdl.load_from_file_with_mem(path, work, size, 0, 0))
    ok(sim.rt.memset(work, size, 0, size))
