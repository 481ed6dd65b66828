"""Which files make one offline model."""

import pytest

from ge_backend.errors import ModelError
from ge_backend.model.files.om_files import grid_file, om_files, read_axes, read_order


def touch(folder, *names):
    for name in names:
        (folder / name).touch()
    return folder / names[0]


def labels(path):
    return [(file.label, file.path.name) for file in om_files(path)]


def test_a_file_without_sizes_stands_alone(tmp_path):
    """Whatever else there is."""
    path = touch(tmp_path, "model.om", "model.1x8.om", "other.om")
    assert labels(path) == [((), "model.om")]


def test_a_grid_is_all_files_of_one_stem_by_size(tmp_path):
    """Sizes are numbers: 16 comes after 8."""
    path = touch(
        tmp_path, "model.1x16.om", "model.1x8.om", "model.8x8.om", "b.1x8.om", "model.old.om"
    )
    assert labels(path) == [
        ((1, 8), "model.1x8.om"),
        ((1, 16), "model.1x16.om"),
        ((8, 8), "model.8x8.om"),
    ]


def test_the_order_of_inputs_in_gears(tmp_path):
    """Stated beside the model, or not."""
    path = tmp_path / "model.om"
    assert read_order(path) == ()
    (tmp_path / "model.om.json").write_text('{"axes": {}, "order": ["b", "a"]}')
    assert read_order(path) == ("b", "a")
    assert read_axes(path) == {}
    (tmp_path / "model.om.json").write_text('{"order": ["b", "a"]}')
    assert read_axes(path) == {}
    (tmp_path / "model.om.json").write_text('{"order": 5}')
    with pytest.raises(ModelError, match=r'"order": \["input_ids"'):
        read_order(path)


@pytest.mark.parametrize("name", ["m.4.om", "m.1x2x3x4.om", "a.b.2x2.om"])
def test_any_number_of_sizes(tmp_path, name):
    """Rows alone, or with as many axes as there are; the stem may have dots."""
    ((label, found),) = labels(touch(tmp_path, name))
    assert found == name
    assert label == tuple(map(int, name.split(".")[-2].split("x")))


@pytest.mark.parametrize("name", ["m.x8.om", "m.8x.om", "m.-1x8.om", "m.8X8.om", "8x8.om"])
def test_what_is_no_list_of_sizes_is_a_name(tmp_path, name):
    """Only whole numbers with an x between them."""
    assert labels(touch(tmp_path, name)) == [((), name)]


def test_names_of_one_grid_are_equally_long(tmp_path):
    """Else it is not clear what the sizes are of."""
    path = touch(tmp_path, "model.1x8.om", "model.4.om")
    with pytest.raises(ModelError, match=r"model\.\S+om and model\.\S+om belong to one model"):
        om_files(path)


def test_the_grid_of_a_folder(tmp_path):
    """The smallest file of the grid that is called model."""
    assert grid_file(tmp_path) is None
    touch(tmp_path, "other.1x1.om", "model.backup.om")
    assert grid_file(tmp_path) is None
    touch(tmp_path, "model.2x8.om", "model.1x64.om")
    assert grid_file(tmp_path).name == "model.1x64.om"


@pytest.mark.parametrize("name", ["model.om", "model.1x8.om"])
def test_names_of_dimensions(tmp_path, name):
    """One file beside, for a grid too."""
    path = touch(tmp_path, name)
    assert read_axes(path) == {}
    (tmp_path / "model.om.json").write_text('{"axes": {"x": ["batch", "length"]}, "more": 1}')
    assert read_axes(path) == {"x": ("batch", "length")}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"axes": ["x"]}', '{"axes": {"x": 3}}'])
def test_names_that_cannot_be_read(tmp_path, text):
    """The message names the file and shows what it should be."""
    path = touch(tmp_path, "model.om")
    (tmp_path / "model.om.json").write_text(text)
    with pytest.raises(ModelError, match=r'model\.om\.json is not readable.*\{"axes":'):
        read_axes(path)
