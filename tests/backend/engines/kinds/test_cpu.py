"""The CPU device itself; what it loads is tested by the contract and with each engine."""

import os
import sys

import pytest

from ge_backend.device.base import GraphSource
from ge_backend.device.machine.openmp import SPINS
from ge_backend.device.machine.threads import Cores
from ge_backend.engines.kinds import cpu
from ge_backend.engines.kinds.cpu import CpuDevice
from ge_backend.errors import DeviceUnavailable, ModelError


def test_lanes_are_the_usable_cores(monkeypatch):
    """By default as many runs are in flight as there are usable cores."""
    monkeypatch.setattr(cpu, "usable_cores", lambda: 7)
    assert CpuDevice().lanes == 7
    assert CpuDevice(lanes=3).lanes == 3


@pytest.mark.parametrize(
    ("name", "library", "extra"),
    [
        ("m.onnx", "onnxruntime", "onnx"),
        ("m.pt2", "torch", "torch"),
        ("m.pt", "torch", "torch"),
        ("tokenizer.json", "tokenizers", "text"),
        ("image.json", "PIL", "image"),
    ],
)
def test_a_missing_engine_names_what_to_install(tmp_path, monkeypatch, name, library, extra):
    """Without the library the error says which extra has it."""
    (tmp_path / name).write_bytes(b"\x08\x08")  # an ONNX model without anything
    for hidden in {library, "openvino"}:
        monkeypatch.setitem(sys.modules, hidden, None)
    with pytest.raises(DeviceUnavailable, match=rf"triton-ge-backend\[{extra}\]"):
        CpuDevice().load(GraphSource.of(tmp_path / name))


def test_a_directory_is_no_model(tmp_path):
    """A folder with the name of a model is refused as missing."""
    (tmp_path / "m.pt2").mkdir()
    with pytest.raises(ModelError, match="no such file"):
        CpuDevice().load(GraphSource.of(tmp_path / "m.pt2"))


def test_threads_of_torch_spin_briefly_while_they_wait(tmp_path, monkeypatch):
    """OpenMP is told so before torch is imported, unless the user has chosen."""
    (tmp_path / "m.pt2").touch()
    monkeypatch.setitem(sys.modules, "torch", None)
    for given, expected in ((None, SPINS), ("7", "7")):
        monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
        monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
        if given:
            monkeypatch.setenv("GOMP_SPINCOUNT", given)
        with pytest.raises(DeviceUnavailable):
            CpuDevice().load(GraphSource.of(tmp_path / "m.pt2"))
        assert os.environ["GOMP_SPINCOUNT"] == expected


@pytest.mark.parametrize(
    ("lanes", "asked", "share"), [(1, 0, 7), (2, 0, 3), (7, 0, 1), (0, 0, 1), (9, 0, 1), (1, 2, 7)]
)
def test_with_fewer_lanes_than_cores_a_run_has_its_share(
    monkeypatch, tmp_path, lanes, asked, share
):
    """Unless the model says how many threads; 0 leaves it to the engine, which may have a choice."""
    given = threads_of(monkeypatch, tmp_path, cpu.FEW_BYTES + 1, lanes, asked)
    assert given == (asked, Cores(7, share))


@pytest.mark.parametrize(("lanes", "asked"), [(1, 0), (2, 0), (7, 0), (1, 2)])
def test_a_model_of_few_weights_has_the_choice_between_one_thread_and_all(
    monkeypatch, tmp_path, lanes, asked
):
    """Its runs may be shorter on one thread, and a second session costs little."""
    given = threads_of(monkeypatch, tmp_path, cpu.FEW_BYTES, lanes, asked)
    assert given == (asked, Cores(7))


@pytest.mark.parametrize("lanes", [0, 1])
def test_a_file_that_is_not_there_is_named(tmp_path, lanes):
    """However many runs there are at once."""
    with pytest.raises(ModelError, match=r"m\.pt: there is no such file"):
        CpuDevice(lanes=lanes).load(GraphSource(path=str(tmp_path / "m.pt"), stamp=""))


def threads_of(monkeypatch, folder, nbytes, lanes, asked):
    """Return the threads and cores that an engine is given for so many bytes, on seven cores."""
    monkeypatch.setattr(cpu, "usable_cores", lambda: 7)
    loaded = []
    monkeypatch.setattr(cpu.Engines, "load", lambda _, *given: loaded.append(given))
    file = folder / "m.pt"
    with file.open("wb") as opened:
        opened.truncate(nbytes)
    CpuDevice(lanes=lanes).load(GraphSource(path=str(file), stamp="", threads=asked))
    ((source, cores),) = loaded
    return source.threads, cores
