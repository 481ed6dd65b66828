"""Model files: what is written is read, and what is damaged is refused."""

import pytest

from acl_simulator import Affine, Echo, Kept, MatMul, Ranges, Static, Sums, write_om
from acl_simulator.om_file import MAGIC, read_om
from builders.acl_rig import ok

STATIC = Static({"x": (2, 8)})


def test_a_file_is_read_as_it_was_written(tmp_path):
    om = read_om(write_om(tmp_path / "m.om", MatMul(), STATIC, duration_ms=7.0).read_bytes())
    assert (om.name, om.soc, om.duration_ms) == ("m", "Ascend910B3", 7.0)
    assert om.graph == MatMul()
    assert (om.work_bytes, om.weight_bytes) == (64, 128)
    assert [tensor.size for tensor in om.inputs + om.outputs] == [64, 32]


def test_sizes_may_be_declared_larger(rig, sim):
    path = rig.write(MatMul(), STATIC, work_bytes=4096, weight_bytes=1024)
    assert ok(sim.mdl.query_size(path)) == (4096, 1024)


@pytest.mark.parametrize("size", ["work_bytes", "weight_bytes"])
def test_sizes_are_not_declared_smaller(tmp_path, size):
    with pytest.raises(ValueError, match="are used"):
        write_om(tmp_path / "m.om", MatMul(), STATIC, **{size: 8})


def test_shapes_have_to_suit_the_graph(tmp_path):
    with pytest.raises(ValueError, match="shapes for"):
        write_om(tmp_path / "m.om", Echo(), Static({"z": (1,)}))
    with pytest.raises(ValueError, match="only a range model"):
        write_om(tmp_path / "m.om", Kept(), Static({"x": (4,)}))


def test_no_model_is_loaded_from_nothing(rig, sim):
    assert sim.mdl.load_from_file(str(rig.folder / "missing.om")) == (0, 145002)
    assert sim.mdl.query_size(str(rig.folder / "missing.om")) == (0, 0, 145002)


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda data: b"ONNX" + data, 100003),
        (lambda data: data[: len(MAGIC) + 2], 545001),
        (lambda data: data[:-8], 545001),
        (lambda data: data.replace(b'"soc"', b'"cos"'), 545001),
    ],
    ids=["magic", "header", "weights", "keys"],
)
def test_a_damaged_file_is_refused(rig, sim, damage, code):
    path = rig.folder / "damaged.om"
    path.write_bytes(damage(write_om(path, Affine(), STATIC).read_bytes()))
    assert sim.mdl.load_from_file(str(path)) == (0, code)
    assert sim.mdl.query_size(str(path)) == (0, 0, code)
    assert sim.mdl.get_desc_from_file(sim.mdl.create_desc(), str(path)) == code


def test_another_chips_model_is_refused(rig, sim):
    path = rig.write(Affine(), STATIC, soc="Ascend310P3")
    assert sim.mdl.load_from_file(path) == (0, 545001)
    assert "built for Ascend310P3" in sim.get_recent_err_msg()


def test_outputs_are_named_as_atc_names_them(rig, sim):
    names = {}
    for style in ("{node}:{index}:{name}", "{node}:{index}", "output_{at}_{node}_{index}"):
        desc = rig.desc(rig.load(Sums(), STATIC, output_names=style))
        names[style] = sim.mdl.get_output_name_by_index(desc, 0)
    assert list(names.values()) == ["Sums_0:0:y", "Sums_0:0", "output_0_Sums_0_0"]


def test_a_range_model_has_no_work_memory(rig, sim):
    path = rig.write(MatMul(), Ranges({"x": ((1, 8), 8)}))
    assert ok(sim.mdl.query_size(path)) == (0, 128)
