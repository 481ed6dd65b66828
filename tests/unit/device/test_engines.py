"""Which engine of a device runs a file."""

import sys
import types
from dataclasses import replace

import pytest

from ge_backend.device.base import GraphSource
from ge_backend.device.engines import Engine, Engines
from ge_backend.errors import ConfigError, DeviceUnavailable, ModelError

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


def test_the_whole_name_may_choose_the_engine(monkeypatch, tmp_path):
    """JSON files are of many kinds; a file's own part of the name comes before the known end."""
    module = types.ModuleType("fake_engine")
    module.FakeGraph = lambda source: "fake"
    monkeypatch.setitem(sys.modules, "fake_engine", module)
    engines = Engines("abacus", {"frame.json": ENGINE})
    for name in ("frame.json", "large_frame.json"):
        (tmp_path / name).touch()
        assert engines.load(GraphSource.of(tmp_path / name)) == "fake"
    with pytest.raises(ModelError, match=r"runs frame\.json"):
        engines.load(GraphSource(path=str(tmp_path / "other.json"), stamp=""))


def test_an_option_of_another_engine_is_refused(monkeypatch, source, tmp_path):
    """Whoever wrote it expects it to do something; options of no engine here are not judged."""
    module = types.ModuleType("fake_engine")
    module.FakeGraph = lambda source: source.options
    monkeypatch.setitem(sys.modules, "fake_engine", module)
    painted = replace(ENGINE, options="paint.")
    engines = Engines("abacus", {".bead": ENGINE, ".wood": painted})
    options = (("ge.x", "1"), ("paint.colour", "red"))
    with pytest.raises(ConfigError, match=r"'paint\.colour' has no meaning for model\.bead"):
        engines.load(replace(source, options=options))
    (tmp_path / "model.wood").touch()
    wooden = GraphSource.of(tmp_path / "model.wood", options=options)
    assert engines.load(wooden) == options


def test_a_missing_library_names_the_extra(engines, source, monkeypatch):
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "fake_engine", None)
    with pytest.raises(DeviceUnavailable, match=r"needs fake_engine .*triton-ge-backend\[fake\]"):
        engines.load(source)
