"""Which engine of a device runs a file."""

import sys
import types
import weakref
from dataclasses import replace

import pytest

from ge_backend.device.base import GraphSource
from ge_backend.device.engines import Engines, installed, preferred
from ge_backend.errors import ConfigError, DeviceUnavailable, ModelError, Unsupported
from ge_backend.model.config.engine_table import EngineRow

ENGINE = EngineRow(
    name="fake",
    kinds=("abacus",),
    ends=(".bead", ".wood"),
    opener="fake_engine:FakeGraph",
    libraries=("fake_engine",),
    extra="fake",
)
OTHER = replace(ENGINE, name="other", libraries=("other_engine",), precisions=("origin", "bf16"))


def put(monkeypatch, name, constructor):
    """Make a module that can be imported and found."""
    module = types.ModuleType(name)
    module.__spec__ = types.SimpleNamespace(name=name)
    module.FakeGraph = lambda source, given: graph(constructor(source, given))
    monkeypatch.setitem(sys.modules, name, module)


def graph(value):
    """Return what is equal to the value, and may be told its engine."""
    return type("FakeGraph", (type(value),), {})(value)


@pytest.fixture
def engines(monkeypatch):
    put(monkeypatch, "fake_engine", lambda source, given: (source, given))
    return Engines("abacus", [ENGINE])


@pytest.fixture
def source(tmp_path):
    (tmp_path / "model.bead").touch()
    return GraphSource.of(tmp_path / "model.bead")


def test_the_end_of_the_name_chooses_the_engine(engines, source):
    """Its constructor gets the source and what the device gives."""
    assert engines.load(source, "beads") == (source, "beads")


def test_a_graph_is_told_its_engine(two, source):
    """By the name in the table, of the one that did not refuse it."""
    assert two.load(source, "beads").engine == "other"


def test_engines_of_other_kinds_of_devices_are_not_asked(engines, source):
    """A device has the rows of its own kind only."""
    with pytest.raises(ModelError, match="the pebble device runs"):
        Engines("pebble", [ENGINE]).load(source, "beads")


def test_another_suffix_is_refused(engines, tmp_path):
    """The error lists what the device runs."""
    with pytest.raises(ModelError, match=r"the abacus device runs \.bead, \.wood"):
        engines.load(GraphSource(path=str(tmp_path / "model.stone"), stamp=""), "beads")


def test_a_missing_file_or_a_folder_is_refused(engines, tmp_path):
    """A folder with the name of a model is no model."""
    (tmp_path / "folder.bead").mkdir()
    for name in ("gone.bead", "folder.bead"):
        with pytest.raises(ModelError, match="no such file"):
            engines.load(GraphSource(path=str(tmp_path / name), stamp=""), "beads")


def test_the_whole_name_may_choose_the_engine(monkeypatch, tmp_path):
    """JSON files are of many kinds; a file's own part of the name comes before the known end."""
    put(monkeypatch, "fake_engine", lambda source, given: "fake")
    engines = Engines("abacus", [replace(ENGINE, ends=("frame.json",))])
    for name in ("frame.json", "large_frame.json"):
        (tmp_path / name).touch()
        assert engines.load(GraphSource.of(tmp_path / name), "beads") == "fake"
    with pytest.raises(ModelError, match=r"runs frame\.json"):
        engines.load(GraphSource(path=str(tmp_path / "other.json"), stamp=""), "beads")


def test_an_option_of_another_engine_is_refused(monkeypatch, source, tmp_path):
    """Whoever wrote it expects it to do something; options of no engine here are not judged."""
    put(monkeypatch, "fake_engine", lambda source, given: source.options)
    painted = replace(ENGINE, options="paint.", ends=(".wood",))
    engines = Engines("abacus", [replace(ENGINE, ends=(".bead",)), painted])
    options = (("ge.x", "1"), ("paint.colour", "red"))
    with pytest.raises(ConfigError, match=r"'paint\.colour' has no meaning for model\.bead"):
        engines.load(replace(source, options=options), "beads")
    (tmp_path / "model.wood").touch()
    wooden = GraphSource.of(tmp_path / "model.wood", options=options)
    assert engines.load(wooden, "beads") == options


def test_a_missing_library_names_the_extra(engines, source, monkeypatch):
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "fake_engine", None)
    with pytest.raises(DeviceUnavailable, match=r"needs fake_engine .*triton-ge-backend\[fake\]"):
        engines.load(source, "beads")


@pytest.mark.parametrize(
    ("given", "here", "chosen"),
    [
        ({}, ["fake_engine", "other_engine"], "fake"),
        ({}, ["other_engine"], "other"),
        ({"precision": "bf16"}, ["fake_engine", "other_engine"], "other"),
        ({"engine": "other"}, ["fake_engine", "other_engine"], "other"),
        ({"engine": "fake", "precision": "bf16"}, ["fake_engine", "other_engine"], "fake"),
    ],
)
def test_of_several_engines_the_first_that_is_here_and_able_runs(
    monkeypatch, source, given, here, chosen
):
    """In the order of the table; one that is named runs whatever else there is."""
    for library in here:
        put(monkeypatch, library, None)
    rows = [replace(row, opener=f"{row.name}_graph:FakeGraph") for row in (ENGINE, OTHER)]
    for row in rows:
        put(monkeypatch, f"{row.name}_graph", lambda source, given, name=row.name: name)
    assert Engines("abacus", rows).load(replace(source, **given), None) == chosen


def refuses(source, given):
    raise Unsupported("such a bead has no hole")


@pytest.fixture
def two(monkeypatch):
    """Two engines that are installed, of which the first one refuses the file."""
    put(monkeypatch, "fake_engine", refuses)
    put(monkeypatch, "other_engine", lambda source, given: "other")
    return Engines("abacus", [ENGINE, replace(OTHER, opener="other_engine:FakeGraph")])


def test_an_engine_that_refuses_this_very_file_leaves_it_to_the_next(two, source, caplog):
    """What it says is in the log."""
    caplog.set_level("INFO")
    assert two.load(source, "beads") == "other"
    assert "engine fake is left out: such a bead has no hole" in caplog.text


def test_what_a_refused_file_was_read_into_is_freed_before_the_next(two, source, monkeypatch):
    """Else its weights were there twice, since errors hold what their frames have."""
    read = []

    def refuses_what_it_has_read(source, given):
        weights = {"as many as there are"}
        read.append(weakref.ref(weights))
        raise Unsupported("such a bead has no hole")

    put(monkeypatch, "fake_engine", refuses_what_it_has_read)
    put(monkeypatch, "other_engine", lambda source, given: f"{read[0]()}")
    assert two.load(source, "beads") == "None"


def test_an_engine_that_cannot_be_imported_leaves_the_file_to_the_next(
    two, source, monkeypatch, tmp_path, caplog
):
    """It is there, and lacks a library of the system, say: only importing it tells."""
    (tmp_path / "fake_engine.py").write_text("raise ImportError('libbeads.so is missing')")
    monkeypatch.delitem(sys.modules, "fake_engine")
    monkeypatch.syspath_prepend(tmp_path)
    caplog.set_level("INFO")
    assert two.load(source, "beads") == "other"
    assert "engine fake is left out: model.bead needs fake_engine (libbeads.so" in caplog.text
    with pytest.raises(DeviceUnavailable, match=r"libbeads\.so is missing"):
        two.load(replace(source, engine="fake"), "beads")


def test_an_engine_that_is_named_is_not_replaced(two, source):
    """Whoever names one wants to know why it does not run."""
    with pytest.raises(Unsupported, match="such a bead has no hole"):
        two.load(replace(source, engine="fake"), "beads")


def test_where_all_engines_refuse_the_first_one_is_told(two, source, monkeypatch):
    """It is the one that was to run."""

    def refuses_too(source, given):
        raise Unsupported("nor has it a colour")

    put(monkeypatch, "other_engine", refuses_too)
    with pytest.raises(Unsupported, match="such a bead has no hole"):
        two.load(source, "beads")


def test_an_engine_that_is_named_has_to_run_the_file(engines, source):
    """The error says which do."""
    with pytest.raises(ConfigError, match=r"'engine' is 'torch'; model\.bead is run by fake"):
        engines.load(replace(source, engine="torch"), "beads")


def test_where_none_is_installed_the_one_that_takes_least_is_asked_for():
    """The first of several; so that the error names the extra to install."""
    more = replace(ENGINE, libraries=(*ENGINE.libraries, "another"))
    assert preferred([more, ENGINE], "origin") is ENGINE
    assert preferred([ENGINE, OTHER], "origin") == ENGINE
    assert preferred([ENGINE, OTHER], "bf16") == OTHER
    assert preferred([ENGINE, OTHER], "fp16") == ENGINE


def test_what_is_installed_is_found_without_importing_it(monkeypatch):
    """All libraries have to be there; one that is hidden is not."""
    assert installed(replace(ENGINE, libraries=("json", "numpy")))
    assert not installed(replace(ENGINE, libraries=("json", "no_such_engine")))
    monkeypatch.setitem(sys.modules, "json", None)
    assert not installed(replace(ENGINE, libraries=("json",)))
