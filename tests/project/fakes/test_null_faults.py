"""Faults of the null device."""

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from builders.null_models import comes_true
from fakes.null_device import EXECUTORS, Fault, NullDevice
from fakes.null_faults import GONE
from ge_backend.device.base import GraphSource, open_device
from ge_backend.errors import DeviceFault, DeviceUnavailable, GraphFailed, ModelError, OutOfMemory

ONE = {"x": np.ones(3, np.float32)}


def model(folder, *faults):
    x = {"name": "x", "dtype": "FP32", "dims": ["n"]}
    path = folder / "model.null"
    path.write_text(json.dumps({"inputs": [x], "outputs": [], "faults": faults}))
    return GraphSource.of(path)


def outcomes(graph, runs, inputs=ONE):
    """Return for each run whether it went well."""
    done = []
    for _ in range(runs):
        try:
            graph.run(inputs, {}, exclusive=False)
            done.append(True)
        except GraphFailed:
            done.append(False)
    return done


def test_a_fault_of_the_file_strikes_the_nth_run(tmp_path):
    """`nth` counts the runs of this graph and strikes once."""
    graph = NullDevice().load(model(tmp_path, {"on": "run", "do": "fail", "nth": 2}))
    assert outcomes(graph, 4) == [True, False, True, True]


def test_without_nth_every_run_is_struck(tmp_path):
    """A fault stays until it is cleared."""
    device = NullDevice()
    graph = device.load(model(tmp_path))
    device.inject(Fault(on="run", do="fail"))
    assert outcomes(graph, 2) == [False, False]
    device.faults.clear()
    assert outcomes(graph, 1) == [True]


def test_an_injected_fault_counts_from_its_injection(tmp_path):
    """The next run is the first."""
    device = NullDevice()
    graph = device.load(model(tmp_path))
    assert outcomes(graph, 3) == [True, True, True]
    device.inject(Fault(on="run", do="fail", nth=1))
    assert outcomes(graph, 2) == [False, True]


def test_a_value_poisons_only_runs_that_hold_it(tmp_path):
    """A fault with a value strikes where some input has an element of that value."""
    graph = NullDevice().load(model(tmp_path, {"on": "run", "do": "fail", "value": 666}))
    poisoned = {"x": np.array([1, 666], np.float32)}
    assert outcomes(graph, 1) == [True]
    assert outcomes(graph, 2, poisoned) == [False, False]
    assert outcomes(graph, 1) == [True]


def test_memory_can_run_out(tmp_path):
    """`out_of_memory` is OutOfMemory."""
    graph = NullDevice().load(model(tmp_path, {"on": "run", "do": "out_of_memory"}))
    with pytest.raises(OutOfMemory, match="injected on run"):
        graph.run(ONE, {}, exclusive=False)


def test_the_device_can_break(tmp_path):
    """`fault` is DeviceFault."""
    graph = NullDevice().load(model(tmp_path, {"on": "run", "do": "fault"}))
    with pytest.raises(DeviceFault, match="injected on run"):
        graph.run(ONE, {}, exclusive=False)


@pytest.mark.parametrize("event", ["load", "prepare"])
def test_loading_and_preparing_can_fail(tmp_path, event):
    """Faults strike other events than runs, and are counted apart."""
    device = NullDevice()
    device.inject(Fault(on=event, do="fail", nth=1))
    with pytest.raises(GraphFailed, match=f"injected on {event}"):
        device.load(model(tmp_path)).prepare(ONE)
    device.load(model(tmp_path)).prepare(ONE)


def test_a_run_can_be_slow(tmp_path, monkeypatch):
    """`sleep` delays, and the run goes on."""
    slept = []
    monkeypatch.setattr("fakes.null_faults.time.sleep", slept.append)
    graph = NullDevice().load(model(tmp_path, {"on": "run", "do": "sleep", "ms": 250}))
    assert outcomes(graph, 1) == [True]
    assert 0.25 in slept


def test_a_run_can_be_held(tmp_path):
    """`hold` makes its file and ends when that is removed, so that a test can order what happens."""
    held = tmp_path / "held"
    graph = NullDevice().load(model(tmp_path, {"on": "run", "do": "hold", "file": str(held)}))
    with ThreadPoolExecutor(1) as thread:
        ended = thread.submit(outcomes, graph, 1)
        assert comes_true(held.exists)
        assert not ended.done()
        held.unlink()
        assert ended.result(5) == [True]


def test_the_process_can_die(tmp_path):
    """`die` ends the process at once: no handler runs."""
    source = model(tmp_path, {"on": "load", "do": "die"})
    code = (
        "import atexit; from fakes.null_device import NullDevice\n"
        "from ge_backend.device.base import GraphSource\n"
        "atexit.register(print, 'handler')\n"
        f"NullDevice().load(GraphSource(path={source.path!r}, stamp=''))"
    )
    ended = subprocess.run(
        [EXECUTORS["GE_PYTHON"], "-c", code], capture_output=True, check=False, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (86, b"", b"")


@pytest.mark.parametrize(
    "fault",
    [
        {},
        {"on": "run"},
        {"on": "walk", "do": "fail"},
        {"on": "run", "do": "fly"},
        {"on": "run", "do": "fail", "when": 3},
    ],
)
def test_what_is_no_fault_is_refused(tmp_path, fault):
    """An unknown key or word is a ModelError that lists the known ones."""
    with pytest.raises(ModelError, match="out_of_memory, fault, sleep, hold, grow, die"):
        NullDevice().load(model(tmp_path, fault))


def test_a_device_is_gone_while_its_file_is_there(tmp_path, monkeypatch):
    """It cannot be opened then, and the others can; without the variable all are there."""
    (tmp_path / "1").touch()
    open_device("null:1")
    monkeypatch.setenv(GONE, str(tmp_path))
    with pytest.raises(DeviceUnavailable, match="null:1 is gone"):
        open_device("null:1")
    open_device("null")
    (tmp_path / "1").unlink()
    open_device("null:1")
