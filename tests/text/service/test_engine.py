"""What is looked at when a checkpoint is loaded: its own defaults, and how near eight bits are."""

import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from builders.language import make
from ge_backend.device.base import MemoryInfo
from ge_backend.errors import ModelError
from ge_backend.model.config.settings import GENERATION_SETTINGS
from ge_text.protocol import ServiceSpec
from ge_text.service import engine as module
from ge_text.service.engine import _defaults, kept_nearness, open_engine


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"temperature": -1}, "temperature is -1.0; it has to be from 0"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0; it has to be a whole number"),
        ({"top_k": "many"}, "top_k is 'many'; it has to be a whole number"),
    ],
)
def test_an_impossible_default_is_refused_at_load(given, message):
    """With the file that says it; every request without the parameter would fail else."""
    with pytest.raises(ModelError, match=f"generation_config.json: {message}"):
        _defaults(Path("model"), given)


def test_a_possible_one_is_taken():
    """As it is."""
    given = {"temperature": 0.6, "max_new_tokens": 2048}
    assert _defaults(Path("model"), given) == given


def test_what_loading_took_for_a_moment_goes_back_to_the_system(tmp_path, monkeypatch):
    """Once all is read and a step has run; executors keep what is freed else."""
    make(tmp_path, "llama")
    seen, prepared = [], module.OwnThread.run

    def run(self, work, *given, **named):
        seen.append(work.__name__)
        return prepared(self, work, *given, **named)

    monkeypatch.setattr(module.OwnThread, "run", run)
    monkeypatch.setattr(module, "give_back_freed", lambda: seen.append("given back"))
    memory = MemoryInfo(free_bytes=2**28, total_bytes=2**30)
    context = SimpleNamespace(
        device=SimpleNamespace(name="cpu", memory=lambda: memory),
        pool=SimpleNamespace(size_bytes=0),
    )
    settings = {setting.key: setting.default for setting in GENERATION_SETTINGS}
    settings |= {f"buckets.{axis}": "" for axis in ("batch", "query", "context")}
    settings |= {"buckets": "", "max_graphs": "0"}
    spec = ServiceSpec(
        folder=str(tmp_path),
        stamp="",
        precision="origin",
        threads=1,
        priority=0,
        served_as="text",
        settings=settings,
        engine="torch",  # which has a thread of its own to see it in
    )
    opened = open_engine(spec, context)
    assert seen[0] == "open_language"
    assert seen[-3:] == ["prepare", "step", "given back"]
    for model in opened.models:
        model.close()


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
