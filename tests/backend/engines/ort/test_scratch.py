"""Peaks of ONNX Runtime come from its own statistics; where it has none they are not known."""

import fcntl
import json
import os
import threading

import numpy as np
import pytest

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper  # noqa: E402

from builders.graphs import graph  # noqa: E402
from ge_backend.engines.ort import scratch as onnx_scratch  # noqa: E402
from ge_backend.engines.ort.scratch import peak_bytes  # noqa: E402
from ge_backend.errors import ModelError  # noqa: E402

MIB = 1 << 20
HAS_STATISTICS = tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= (1, 31)
needs_statistics = pytest.mark.skipif(
    not HAS_STATISTICS, reason="this ONNX Runtime has no memory statistics in its profiles"
)


@pytest.fixture
def model(tmp_path):
    """Take x [rows, 1 MiB] of floats -> their sum after four steps, two of them alive at once."""
    nodes = [helper.make_node("Exp", ["x"], ["a"]), helper.make_node("Mul", ["a", "x"], ["b"])]
    nodes += [helper.make_node("MatMul", ["b", "one"], ["y"])]
    path = tmp_path / "model.onnx"
    path.write_bytes(
        graph(
            nodes,
            [("x", TensorProto.FLOAT, ["rows", MIB // 4])],
            [("y", TensorProto.FLOAT, ["rows", 1])],
            [("one", np.ones((MIB // 4, 1), np.float32))],
        )
    )
    return str(path)


def run_of(rows):
    x = np.ones((rows, MIB // 4), np.float32)
    return lambda session: session.run(None, {"x": x})


@needs_statistics
@pytest.mark.parametrize("rows", [1, 4, 16])
def test_the_peak_is_what_is_alive_at_once(model, rows):
    """The weights are not in it; it is between one tensor and both."""
    (peak,) = peak_bytes(model, [run_of(rows)])
    assert rows * MIB <= peak <= 2 * rows * MIB + MIB / 2
    assert peak_bytes(model, [run_of(rows)]) == [peak]


@needs_statistics
def test_several_runs_are_told_apart(model):
    """Each has its own peak, the smallest first; one that is as large as the one before, too."""
    peaks = peak_bytes(model, [run_of(rows) for rows in (1, 4, 4, 16)])
    for rows, peak in zip((1, 4, 4, 16), peaks, strict=True):
        assert rows * MIB <= peak <= 2 * rows * MIB + MIB / 2


@needs_statistics
def test_other_sessions_do_not_count(model):
    """They run larger batches meanwhile, in the arena that they share."""
    from ge_backend.engines.ort.session import open_session

    alone = peak_bytes(model, [run_of(2)])
    started, stop = threading.Event(), threading.Event()
    session = open_session(model, 1, spin=False)

    def other():
        while not stop.is_set():
            run_of(8)(session)
            started.set()

    thread = threading.Thread(target=other)
    thread.start()
    try:
        assert started.wait(60)
        assert peak_bytes(model, [run_of(2)]) == alone
    finally:
        stop.set()
        thread.join()


def test_a_profile_without_statistics_says_nothing(model, monkeypatch):
    """Older releases write none: 0 is what is not known."""
    loads = json.loads

    def older(text):
        events = loads(text)
        for event in events:
            arguments = event.get("args", {})
            for key in [key for key in arguments if key.startswith("mem_")]:
                del arguments[key]
        return events

    monkeypatch.setattr(onnx_scratch.json, "loads", older)
    assert peak_bytes(model, [run_of(1), run_of(2)]) == [0, 0]


def test_where_no_profile_can_be_written_nothing_is_known(model, tmp_path, monkeypatch, caplog):
    """A full disk, on which a profile has no end, is no reason not to measure a bucket."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    assert peak_bytes(model, [run_of(1), run_of(2)]) == [0, 0]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    loads = json.loads
    monkeypatch.setattr(onnx_scratch.json, "loads", lambda text: loads(text[: len(text) // 2]))
    assert peak_bytes(model, [run_of(1), run_of(2)]) == [0, 0]
    told = [line for line in caplog.messages if "scratch memory is not measured" in line]
    assert len(told) == 2


def test_errors_are_passed_on_and_nothing_is_left(model, tmp_path, monkeypatch):
    """Of a run as of a file; no profile stays behind."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def fail(session):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        peak_bytes(model, [run_of(1), fail])
    with pytest.raises(ModelError):
        peak_bytes(str(tmp_path / "none.onnx"), [run_of(1)])
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_a_profile_that_a_killed_process_has_left_goes_with_the_next_one(
    model, tmp_path, monkeypatch
):
    """Others that are being written stay; they lie in the server's own folder where it has one."""
    server = tmp_path / "run"
    left, living = server / "ge-profile-left", server / "ge-profile-living"
    for folder in (left, living):
        folder.mkdir(parents=True)
    monkeypatch.setenv("GE_RUNTIME_DIR", str(server))
    lock = os.open(living, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    seen = []
    peak_bytes(model, [lambda _: seen.extend(path.name for path in server.iterdir())])
    assert len(seen) == 2
    assert [path.name for path in server.iterdir()] == [living.name]
    os.close(lock)


def kernels(*figures):
    """Return entries of (in use after the kernel, change, peak)."""
    names = ("mem_bytes_in_use", "mem_in_use_delta", "mem_in_use_peak")
    return [dict(zip(names, map(str, entry), strict=True)) for entry in figures]


GROWING = kernels((110, 10, 110), (130, 20, 150), (120, -10, 150))
LARGER = kernels((110, 10, 150), (190, 80, 210), (100, -90, 210))
AFTER_LOADING = kernels((110, 10, 900), (130, 20, 900), (100, -30, 900))


@pytest.mark.parametrize(
    ("profiles", "peaks"),
    [
        ([], []),
        ([GROWING], [50]),
        ([GROWING, LARGER], [50, 110]),
        ([GROWING, kernels((101, 1, 150))], [50, 50]),
        ([AFTER_LOADING], [30]),
        ([AFTER_LOADING, kernels((115, 15, 900))], [30, 30]),
        ([kernels((100, 0, 900))], [0]),
        ([GROWING, []], [0, 0]),
    ],
    ids=[
        *("no runs", "the peak grew", "twice", "only once", "loading took more", "and again"),
        *("nothing taken", "no kernels"),
    ],
)
def test_the_peak_of_a_run(profiles, peaks):
    """Less what was in use before; what loading took at its peak is not the run's."""
    assert onnx_scratch._peaks(profiles) == peaks
