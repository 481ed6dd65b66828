"""Descriptions of models."""

from pathlib import Path

import pytest

from acl_simulator import (
    BatchGears,
    DimsGears,
    Echo,
    Encoder,
    ImageGears,
    Misuse,
    Ranges,
    Static,
    Sums,
)
from acl_simulator.codes import DATA_TYPES
from builders.acl_rig import ANY, ok

GEAR = "ascend_mbatch_shape_data"
ND, NCHW = 2, 0
DIMS = DimsGears(
    {"input_ids": (-1, -1), "attention_mask": (-1, -1)}, [(1, 8, 1, 8), (4, 16, 4, 16)]
)


def test_a_static_model(rig, sim):
    mdl, desc = sim.mdl, rig.desc(rig.load(Sums("FP16"), Static({"x": (4, 8)})))
    assert (mdl.get_num_inputs(desc), mdl.get_num_outputs(desc)) == (1, 1)
    assert ok(mdl.get_input_dims(desc, 0)) == {"name": "x", "dimCount": 2, "dims": [4, 8]}
    assert mdl.get_input_dims_v2(desc, 0) == mdl.get_input_dims(desc, 0)
    expected = {"name": "Sums_0:0:y", "dimCount": 1, "dims": [4]}
    assert ok(mdl.get_output_dims(desc, 0)) == ok(mdl.get_cur_output_dims(desc, 0)) == expected
    assert (mdl.get_input_size_by_index(desc, 0), mdl.get_output_size_by_index(desc, 0)) == (64, 8)
    assert (mdl.get_input_data_type(desc, 0), mdl.get_output_data_type(desc, 0)) == (1, 1)
    assert (mdl.get_input_format(desc, 0), mdl.get_output_format(desc, 0)) == (ND, ND)
    assert ok(mdl.get_input_index_by_name(desc, "x")) == 0
    assert ok(mdl.get_output_index_by_name(desc, "Sums_0:0:y")) == 0
    assert mdl.get_output_index_by_name(desc, "y") == (0, 100000)
    assert ok(mdl.get_input_dims_range(desc, 0))["range"] == [[4, 4], [8, 8]]
    assert ok(mdl.get_dynamic_batch(desc))["batchCount"] == 0
    assert ok(mdl.get_dynamic_hw(desc, ANY))["hwCount"] == 0
    assert ok(mdl.get_input_dynamic_gear_count(desc, ANY)) == 0


@pytest.mark.parametrize("number", DATA_TYPES)
def test_every_type_has_its_number(rig, sim, number):
    name, dtype = DATA_TYPES[number]
    desc = rig.desc(rig.load(Echo(name), Static({"x": (3,)})))
    assert sim.mdl.get_input_data_type(desc, 0) == number
    assert sim.mdl.get_input_size_by_index(desc, 0) == 3 * dtype.itemsize


def test_batch_gears(rig, sim):
    mdl, desc = (
        sim.mdl,
        rig.desc(rig.load(Sums(), BatchGears({"x": (-1, 4)}, [(1,), (8,), (2,)]))),
    )
    assert mdl.get_num_inputs(desc) == 2
    assert ok(mdl.get_input_dims(desc, 0))["dims"] == [-1, 4]
    assert mdl.get_input_name_by_index(desc, 1) == GEAR
    assert (mdl.get_input_size_by_index(desc, 0), mdl.get_input_size_by_index(desc, 1)) == (128, 4)
    assert ok(mdl.get_dynamic_batch(desc)) == {"batchCount": 3, "batch": [1, 8, 2]}
    assert ok(mdl.get_output_dims(desc, 0))["dims"] == [8]
    assert mdl.get_output_size_by_index(desc, 0) == 32


def test_image_gears(rig, sim):
    gears = ImageGears({"x": (1, 3, -1, -1)}, [(4, 4), (8, 2)])
    mdl, desc = sim.mdl, rig.desc(rig.load(Echo(), gears))
    assert ok(mdl.get_dynamic_hw(desc, ANY)) == {"hwCount": 2, "hw": [[4, 4], [8, 2]]}
    assert mdl.get_input_size_by_index(desc, 1) == 8
    assert mdl.get_input_format(desc, 0) == NCHW


def test_dims_gears(rig, sim):
    mdl, desc = sim.mdl, rig.desc(rig.load(Encoder(), DIMS))
    assert ok(mdl.get_input_dynamic_gear_count(desc, ANY)) == 2
    gears = ok(mdl.get_input_dynamic_dims(desc, ANY, 2))
    assert [gear["dims"] for gear in gears] == [[1, 8, 1, 8], [4, 16, 4, 16]]
    assert ok(mdl.get_input_index_by_name(desc, GEAR)) == 2


def test_gears_are_asked_for_as_a_whole(rig, sim):
    mdl, desc = sim.mdl, rig.desc(rig.load(Encoder(), DIMS))
    assert mdl.get_input_dynamic_gear_count(desc, 0) == (0, 100000)
    assert mdl.get_input_dynamic_dims(desc, ANY, 4097) == (None, 100000)


def test_the_list_of_a_failed_call_is_not_touched(rig, sim):
    gears, ret = sim.mdl.get_input_dynamic_dims(rig.desc(rig.load(Encoder(), DIMS)), ANY, 1)
    assert ret == 100000
    for touch in (lambda: gears[0], lambda: list(gears), lambda: len(gears), lambda: bool(gears)):
        with pytest.raises(Misuse, match="slots are NULL"):
            touch()


def test_a_range_model(rig, sim):
    mdl, desc = sim.mdl, rig.desc(rig.load(Sums(), Ranges({"x": ((1, 8), 4)})))
    assert mdl.get_num_inputs(desc) == 1
    assert ok(mdl.get_input_dims(desc, 0))["dims"] == [-1, 4]
    assert ok(mdl.get_input_dims_range(desc, 0)) == {"rangeCount": 2, "range": [[1, 8], [4, 4]]}
    assert (mdl.get_input_size_by_index(desc, 0), mdl.get_output_size_by_index(desc, 0)) == (0, 0)
    assert ok(mdl.get_output_dims(desc, 0))["dims"] == [-1]
    assert mdl.get_cur_output_dims(desc, 0) == ({}, 200001)


def test_what_is_not_there(rig, sim):
    mdl, desc = sim.mdl, rig.desc(rig.load(Sums(), Static({"x": (4, 8)})))
    assert mdl.get_input_dims(desc, 1) == ({}, 100000)
    assert (mdl.get_input_size_by_index(desc, 1), mdl.get_input_name_by_index(desc, 1)) == (0, "")
    empty = mdl.create_desc()
    assert (mdl.get_num_inputs(empty), mdl.get_num_outputs(empty)) == (0, 0)
    assert mdl.get_desc(empty, 99) == 145003


def test_a_file_can_be_described_without_loading(rig, sim):
    mdl, desc = sim.mdl, sim.mdl.create_desc()
    path = rig.write(Sums(), Static({"x": (4, 8)}))
    ok(mdl.get_desc_from_file(desc, path))
    assert ok(mdl.get_input_dims(desc, 0))["dims"] == [4, 8]
    assert mdl.get_cur_output_dims(desc, 0) == ({}, 100000)
    data = Path(path).read_bytes()
    ok(mdl.get_desc_from_mem(desc, sim.util.bytes_to_ptr(data), len(data)))
    assert ok(mdl.get_output_dims(desc, 0))["dims"] == [4]
    ok(mdl.destroy_desc(desc))
