"""What a checkpoint loses in eight bits is measured once, and again when something changes."""

import math
import shutil

import pytest

from ge_text.service import kept as module
from ge_text.service.kept import kept_nearness


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Two files of a checkpoint, and a cache folder that nothing is kept in."""
    monkeypatch.setenv("GE_CACHE_DIR", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    folder.mkdir()
    made = [folder / "config.json", folder / "model.safetensors"]
    for path in made:
        path.write_text(path.name)
    return made


def unasked():
    raise AssertionError("it was measured again")


@pytest.mark.parametrize("figure", [0.0, 0.0312, math.inf])
def test_a_figure_is_measured_once(files, figure):
    """A folder that was copied has the same one."""
    assert kept_nearness(files, lambda: figure) == figure
    assert kept_nearness(files, unasked) == figure
    copied = shutil.copytree(files[0].parent, files[0].parent.parent / "copy")
    assert kept_nearness([copied / path.name for path in files], unasked) == figure


@pytest.mark.parametrize("changed", ["content", "release_of", "processor_kind"])
def test_what_it_depends_on_is_measured_again(files, monkeypatch, changed):
    """The files' content, OpenVINO's release and the processor."""
    kept_nearness(files, lambda: 0.01)
    if changed == "content":
        files[1].write_text("model.safetensorz")
    else:
        monkeypatch.setattr(module, changed, lambda *_: "another")
    assert kept_nearness(files, lambda: 0.02) == 0.02
    assert kept_nearness(files, unasked) == 0.02


def test_what_is_no_figure_is_measured_again(files, monkeypatch):
    """Somebody may have written to the file."""
    kept_nearness(files, lambda: 0.01)
    (kept,) = (files[0].parent.parent / "cache").glob("*/*.json")
    kept.write_text('"near"')
    assert kept_nearness(files, lambda: 0.02) == 0.02


def test_without_a_cache_folder_it_is_measured_at_each_load(files, monkeypatch):
    """As all that is found out is."""
    monkeypatch.setenv("GE_CACHE_DIR", "off")
    assert kept_nearness(files, lambda: 0.01) == 0.01
    assert kept_nearness(files, lambda: 0.02) == 0.02
