"""Gears: set before a run, and read by it."""

import numpy as np
import pytest

from acl_simulator import Affine, BatchGears, DimsGears, Encoder, ImageGears, Misuse
from builders.acl_rig import ok

GEARS = [(1, 8, 1, 8), (4, 16, 4, 16)]
IDS = np.arange(1, 9).reshape(1, 8)
MASK = np.ones_like(IDS)


@pytest.fixture
def encoder(rig):
    shapes = DimsGears({"input_ids": (-1, -1), "attention_mask": (-1, -1)}, GEARS)
    return rig.load(Encoder(), shapes)


@pytest.fixture
def batched(rig):
    return rig.load(Affine(), BatchGears({"x": (-1, 2)}, [(1,), (2,), (4,)]))


def dims(*values):
    return {"name": "", "dimCount": len(values), "dims": list(values)}


def test_a_run_is_in_the_gear_that_was_set(rig, sim, encoder):
    inputs, outputs = rig.datasets(encoder)
    rig.fill(inputs, IDS, MASK)
    ok(sim.mdl.set_input_dynamic_dims(encoder, inputs, 2, dims(1, 8, 1, 8)))
    ok(sim.mdl.execute_async(encoder, inputs, outputs, rig.stream))
    ok(sim.rt.synchronize_stream(rig.stream))
    (y,) = rig.results(encoder, outputs)
    assert np.array_equal(y, Encoder().expected(input_ids=IDS, attention_mask=MASK)["y"])
    assert sim.executions == [("model", {"input_ids": (1, 8), "attention_mask": (1, 8)})]


def test_without_a_gear_the_largest_runs(rig, sim, batched):
    inputs, outputs = rig.datasets(batched)
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    rig.fill(inputs, x)
    desc = rig.desc(batched)
    assert ok(sim.mdl.get_cur_output_dims(desc, 0))["dims"] == [4, 2]
    ok(sim.mdl.execute(batched, inputs, outputs))
    assert np.array_equal(rig.results(batched, outputs)[0], 2 * x + 1)


def test_the_output_follows_the_gear(rig, sim, batched):
    desc = rig.desc(batched)
    inputs, outputs = rig.datasets(batched)
    for batch in (1, 2, 4):
        x = np.full((batch, 2), batch, np.float32)
        rig.fill(inputs, x)
        ok(sim.mdl.set_dynamic_batch_size(batched, inputs, 1, batch))
        assert ok(sim.mdl.get_cur_output_dims(desc, 0))["dims"] == [batch, 2]
        assert ok(sim.mdl.get_output_dims(desc, 0))["dims"] == [4, 2]
        ok(sim.mdl.execute(batched, inputs, outputs))
        assert np.array_equal(rig.results(batched, outputs)[0], 2 * x + 1)


def test_images_have_gears(rig, sim):
    model = rig.load(Affine(), ImageGears({"x": (1, 1, -1, -1)}, [(2, 3), (4, 4)]))
    inputs, outputs = rig.datasets(model)
    x = np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3)
    rig.fill(inputs, x)
    ok(sim.mdl.set_dynamic_hw_size(model, inputs, 1, 2, 3))
    ok(sim.mdl.execute(model, inputs, outputs))
    assert np.array_equal(rig.results(model, outputs)[0], 2 * x + 1)
    assert sim.mdl.set_dynamic_hw_size(model, inputs, 1, 3, 2) == 145013
    assert sim.mdl.set_dynamic_hw_size(model, inputs, 1, 0, 2) == 100000


@pytest.mark.parametrize(
    ("values", "code"),
    [((1, 9, 1, 9), 145013), ((1, 8, 4, 16), 145013), ((1, 8), 145012)],
)
def test_only_gears_are_taken(rig, sim, encoder, values, code):
    inputs, _ = rig.datasets(encoder)
    assert sim.mdl.set_input_dynamic_dims(encoder, inputs, 2, dims(*values)) == code


def test_static_dimensions_stay(rig, sim):
    model = rig.load(Affine(), DimsGears({"x": (-1, 4)}, [(1,), (2,)]))
    inputs, _ = rig.datasets(model)
    ok(sim.mdl.set_input_dynamic_dims(model, inputs, 1, dims(2, 4)))
    assert sim.mdl.set_input_dynamic_dims(model, inputs, 1, dims(2, 5)) == 145012


def test_a_batch_is_a_gear(rig, sim, batched):
    inputs, _ = rig.datasets(batched)
    assert sim.mdl.set_dynamic_batch_size(batched, inputs, 1, 0) == 100000
    assert sim.mdl.set_dynamic_batch_size(batched, inputs, 1, 3) == 145013
    assert sim.mdl.set_dynamic_batch_size(batched, inputs, 2, 1) == 100000
    assert sim.mdl.set_dynamic_batch_size(batched, inputs, 0, 1) == 145011
    assert sim.mdl.set_dynamic_batch_size(99, inputs, 1, 1) == 145003


def test_the_wrong_kind_of_gear_is_refused(rig, sim, batched):
    inputs, _ = rig.datasets(batched)
    assert sim.mdl.set_dynamic_hw_size(batched, inputs, 1, 2, 2) == 100000
    assert sim.mdl.set_input_dynamic_dims(batched, inputs, 1, dims(1, 2)) == 100000


@pytest.mark.parametrize(
    ("shape", "error"),
    [
        ({"dims": [1, 8, 1, 8]}, SystemError),
        ({"dimCount": 4}, TypeError),
        ({"dimCount": 4, "dims": (1, 8, 1, 8)}, TypeError),
        ({"dimCount": 4, "dims": list(np.array([1, 8, 1, 8]))}, TypeError),
        ({"dimCount": 5, "dims": [1, 8, 1, 8]}, TypeError),
    ],
)
def test_the_dict_of_dims_is_exact(rig, sim, encoder, shape, error):
    inputs, _ = rig.datasets(encoder)
    with pytest.raises(error):
        sim.mdl.set_input_dynamic_dims(encoder, inputs, 2, shape)


def test_the_gear_buffer_has_to_be_large_enough(rig, sim, encoder):
    inputs, _ = rig.datasets(encoder)
    buffer = sim.mdl.get_dataset_buffer(inputs, 2)
    ok(sim.update_data_buffer(buffer, rig.device(64), 15))
    assert sim.mdl.set_input_dynamic_dims(encoder, inputs, 2, dims(*GEARS[0])) == 145012
    ok(sim.update_data_buffer(buffer, 0, 0))
    assert sim.mdl.set_input_dynamic_dims(encoder, inputs, 2, dims(*GEARS[0])) == 100000


@pytest.mark.parametrize(("room", "dtype"), [(4, np.uint32), (8, np.uint64), (64, np.uint64)])
def test_values_are_wide_where_they_fit(rig, sim, batched, room, dtype):
    inputs, outputs = rig.datasets(batched)
    address = rig.device(64)
    ok(sim.update_data_buffer(sim.mdl.get_dataset_buffer(inputs, 1), address, room))
    ok(sim.mdl.set_dynamic_batch_size(batched, inputs, 1, 2))
    assert rig.download(address, dtype, 1) == [2]
    rig.fill(inputs, np.zeros((2, 2), np.float32))
    ok(sim.mdl.execute(batched, inputs, outputs))


def test_a_gear_is_not_set_while_the_model_runs(rig, sim, batched):
    inputs, outputs = rig.datasets(batched)
    ok(sim.mdl.set_dynamic_batch_size(batched, inputs, 1, 2))
    ok(sim.mdl.execute_async(batched, inputs, outputs, rig.stream))
    with pytest.raises(Misuse, match="setting a gear"):
        sim.mdl.set_dynamic_batch_size(batched, inputs, 1, 1)


def test_the_gear_buffer_is_the_one_that_was_set(rig, sim, batched):
    inputs, outputs = rig.datasets(batched)
    ok(sim.mdl.set_dynamic_batch_size(batched, inputs, 1, 2))
    rig.upload(rig.buffer(inputs, 1)[0], np.array([4], np.uint32))
    with pytest.raises(Misuse, match="its buffer says"):
        sim.mdl.execute(batched, inputs, outputs)


def test_a_gear_is_set_for_the_runs_of_one_dataset(rig, sim, batched):
    first, outputs = rig.datasets(batched)
    second, _ = rig.datasets(batched)
    ok(sim.mdl.set_dynamic_batch_size(batched, first, 1, 2))
    ok(sim.mdl.execute(batched, second, outputs))
    assert sim.executions[-1][1] == {"x": (4, 2)}
    ok(sim.mdl.execute(batched, first, outputs))
    assert sim.executions[-1][1] == {"x": (2, 2)}


def test_gears_follow_the_order_of_the_command_line(rig, sim):
    names = ("input_ids", "attention_mask")
    shapes = DimsGears(dict.fromkeys(names, (-1, -1)), [(1, 8, 2, 8), (4, 16, 4, 16)], names[::-1])
    model = rig.load(Encoder(), shapes)
    desc = rig.desc(model)
    gears = ok(sim.mdl.get_input_dynamic_dims(desc, -1, 2))
    assert gears[0]["dims"] == [1, 8, 2, 8]
    assert shapes.fill((1, 8, 2, 8)) == {"input_ids": (2, 8), "attention_mask": (1, 8)}


def test_so_many_gears_cannot_be_listed(rig, sim):
    def count(gears):
        shapes = DimsGears({"x": (-1, 2)}, [(rows,) for rows in range(1, gears + 1)])
        return sim.mdl.get_input_dynamic_gear_count(rig.desc(rig.load(Affine(), shapes)), -1)

    assert count(128) == (128, 0)
    assert count(129) == (0, 300000)


def test_the_gear_input_counts(rig, sim, batched):
    inputs, outputs = rig.datasets(batched)
    without = rig.dataset(rig.buffer(inputs, 0))
    assert sim.mdl.execute(batched, without, outputs) == 145000


def test_a_gear_model_takes_buffers_of_the_gear_but_writes_the_largest(rig, sim, batched):
    inputs, outputs = rig.datasets(batched)
    ok(sim.mdl.set_dynamic_batch_size(batched, inputs, 1, 1))
    small = rig.dataset((rig.device(8), 8), rig.buffer(inputs, 1))
    ok(sim.mdl.set_dynamic_batch_size(batched, small, 1, 1))
    ok(sim.mdl.execute(batched, small, outputs))
    assert sim.mdl.execute(batched, inputs, rig.dataset((rig.device(8), 8))) == 145000
    ok(sim.mdl.set_dynamic_batch_size(batched, small, 1, 2))
    assert sim.mdl.execute(batched, small, outputs) == 145000
