"""Which engine of a device runs a file."""

import sys
import types

import pytest

from ge_backend.device.base import GraphSource
from ge_backend.device.engines import Engine, Engines
from ge_backend.errors import DeviceUnavailable, ModelError

ENGINE = Engine(module="fake_engine", attribute="FakeGraph", library="fake_engine", extra="fake")


@pytest.fixture
def engines(monkeypatch):
    module = types.ModuleType("fake_engine")
    module.FakeGraph = lambda source, **given: (source, given)
    monkeypatch.setitem(sys.modules, "fake_engine", module)
    return Engines("abacus", {".bead": ENGINE, ".wood": ENGINE})


@pytest.fixture
def source(tmp_path):
    (tmp_path / "model.bead").touch()
    return GraphSource.of(tmp_path / "model.bead")


def test_the_suffix_chooses_the_engine(engines, source):
    """Its class gets the source and whatever else the device gives."""
    assert engines.load(source, cores=3) == (source, {"cores": 3})


def test_another_suffix_is_refused(engines, tmp_path):
    """The error lists what the device runs."""
    with pytest.raises(ModelError, match=r"the abacus device runs \.bead, \.wood"):
        engines.load(GraphSource(path=str(tmp_path / "model.stone"), stamp=""))


def test_a_missing_file_or_a_folder_is_refused(engines, tmp_path):
    """A folder with the name of a model is no model."""
    (tmp_path / "folder.bead").mkdir()
    for name in ("gone.bead", "folder.bead"):
        with pytest.raises(ModelError, match="no such file"):
            engines.load(GraphSource(path=str(tmp_path / name), stamp=""))


def test_a_missing_library_names_the_extra(engines, source, monkeypatch):
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "fake_engine", None)
    with pytest.raises(DeviceUnavailable, match=r"needs fake_engine .*triton-ge-backend\[fake\]"):
        engines.load(source)
