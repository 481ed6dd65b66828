"""Opening devices by name, and sources of graphs."""

import os

import pytest

from ge_backend.device.base import GraphSource, open_device
from ge_backend.errors import DeviceUnavailable


@pytest.mark.parametrize("name", ["tpu", "", "cpu:x", "cpu:-1", "CPU", "null:1.5"])
def test_an_unknown_device_is_refused_with_the_known_kinds(name):
    """A wrong name is DeviceUnavailable and lists the right ones."""
    with pytest.raises(DeviceUnavailable, match=r"known kinds are cpu, cuda, npu, null"):
        open_device(name)


@pytest.mark.parametrize("name", ["cpu", "cpu:0", "null", "null:0", "null:3"])
def test_a_device_is_called_as_it_was_opened(name):
    """The name has the index, save for the first."""
    assert open_device(name).name == name.removesuffix(":0")


def test_there_is_one_cpu():
    """An index other than 0 is refused for the cpu."""
    with pytest.raises(DeviceUnavailable, match="say 'cpu'"):
        open_device("cpu:1")


def test_a_source_is_the_file_as_it_is_now(tmp_path):
    """Sources are equal while the file is unchanged, by whichever path it is reached."""
    path = tmp_path / "model.pt2"
    path.write_text("one")
    source = GraphSource.of(path)
    link = tmp_path / "link.pt2"
    link.symlink_to(path)
    assert GraphSource.of(link) == source
    assert GraphSource.of(path, precision="bf16") != source
    assert GraphSource.of(path, threads=2) != source
    os.utime(path, ns=(1, 1))
    assert GraphSource.of(path) != source


@pytest.mark.parametrize("name", ["cpu", "null", "null:1"])
def test_a_device_has_as_many_lanes_as_asked_for(name):
    """0 leaves it to the device."""
    assert open_device(name, lanes=5).lanes == 5
    assert open_device(name, lanes=0).lanes == open_device(name).lanes > 0
