"""The executor of a simulated NPU, in a process of its own: gears, faults, restarts, clean ends."""

import sys
import threading
from pathlib import Path

import pytest

from acl_simulator import DimsGears, MatMul, Static, Sums, write_om
from acl_simulator.site import SimulatedPython
from builders.null_models import order, run_values, running, sums
from ge_backend.device.base import GraphSource
from ge_backend.errors import DeviceUnavailable, ModelError, OutOfMemory
from ge_backend.executor.protocol.messages import PrepareInput

GEARS = [(2, 3), (4, 8), (8, 8)]
HBM = 4 << 20


@pytest.fixture
def python(tmp_path):
    """An interpreter with a simulated `acl`; at the end nothing was misused or left on the device."""
    python = SimulatedPython(tmp_path, hbm_bytes=HBM)
    yield python
    report = python.report()
    assert report.get("misuses", []) == []
    assert report.get("finalised", True)


@pytest.fixture
def load(python, machine, tmp_path):
    """Return a function that gives a session with a model on the NPU, warmed up."""

    def load(name="model", *, device="npu:0", interpreter=None, pool_bytes=0, **options):
        path = tmp_path / f"{name}.om"
        if not path.exists():
            write_om(path, Sums(), DimsGears({"x": (-1, -1)}, GEARS))
        session = machine.session(
            GraphSource.of(path, options=tuple(sorted(options.items()))),
            device=device,
            python=str(interpreter or python.path),
            pool_bytes=pool_bytes,
        )
        session.compile(session.shape_policy.fixed)
        for rows, length in GEARS if session.shape_policy.fixed[0]["x"] == GEARS[0] else ():
            session.prepare(
                (PrepareInput(name="x", dtype="FP32", shape=(rows, length), fill=1),), 1
            )
        return session

    return load


def test_gears_are_served(load, python):
    """Each run in its own gear, with results in the arena."""
    session = load()
    assert [shapes["x"] for shapes in session.shape_policy.fixed] == GEARS
    session.reserve(4096)
    orders = [order(session, at, rows=rows, length=n) for at, (rows, n) in enumerate(GEARS * 3)]
    outcomes = dict(running(session, orders))
    expected = [float(at * n) for at, (_, n) in enumerate(GEARS * 3)]
    assert sums([outcomes[at] for at in range(len(orders))]) == expected
    assert session.inspect().total_bytes == HBM


def test_models_share_a_workspace_pool(load, python):
    """Two models in a pool with room for one take turns, and both are right."""
    sessions = [load(name, pool_bytes=384) for name in ("one", "two")]
    results = {}

    def work(index):
        batches = [sums(run_values(sessions[index], *range(1, 9))) for _ in range(5)]
        results[index] = batches == [[3.0 * value for value in range(1, 9)]] * 5

    threads = [threading.Thread(target=work, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {0: True, 1: True}
    report = sessions[0].inspect()
    assert (report.pool.size_bytes, report.defects) == (384, ())
    assert sum(report.pool.holders.values()) > 384


@pytest.mark.parametrize("code", [507015, 507054, 507899])
def test_a_broken_device_costs_a_restart(load, machine, python, code):
    """Every run is answered, by another executor."""
    session = load()
    pid = session.executor_pid
    python.fail("kernel.*", code)
    assert sums(run_values(session, 1, 2, 3)) == [3, 6, 9]
    assert machine.restarts == 1
    assert session.executor_pid != pid


def test_a_run_that_hangs_costs_a_restart(load, machine, python):
    """After the time limit of its model."""
    session = load(**{"npu.timeout_s": "1"})
    python.fail("kernel.*", hang=True)
    assert sums(run_values(session, 1, 2, 3)) == [3, 6, 9]
    assert machine.restarts == 1


def test_a_refused_run_fails_and_costs_nothing(load, machine, python):
    """A refusal is no fault of the device."""
    session = load()
    python.fail("mdl.execute_async", 100000)
    outcomes = sums(run_values(session, 1, 2, 3))
    assert outcomes.count("GraphFailed") == 1
    assert machine.restarts == 0
    assert sums(run_values(session, 4)) == [12]


def test_a_model_that_does_not_fit_leaves_the_others(load, tmp_path):
    """It is refused with the numbers; the executor and its models go on."""
    session = load()
    write_om(tmp_path / "large.om", MatMul(rows=2048, columns=2048), Static({"x": (2, 2048)}))
    with pytest.raises(OutOfMemory, match=r"16 MiB needed, .* of 4 MiB free"):
        load("large")
    assert sums(run_values(session, 5)) == [15]


@pytest.mark.parametrize(
    ("device", "words"),
    [("npu:7", r"no npu:7: this process sees 1 NPU\(s\)"), ("npu:x", "unknown")],
)
def test_a_device_that_is_not_there(load, device, words):
    """Loading says so in one line."""
    with pytest.raises(DeviceUnavailable, match=words) as caught:
        load(device=device)
    assert "\n" not in str(caught.value)


def test_a_machine_without_cann(load):
    """Loading says what to source."""
    with pytest.raises(DeviceUnavailable, match=r"needs CANN's Python module.*set_env\.sh"):
        load(interpreter=sys.executable)


@pytest.mark.parametrize(
    ("content", "words"), [(b"nothing", "cannot be loaded"), ("Ascend310P3", "is a Ascend910B3")]
)
def test_a_file_that_is_not_for_this_device(load, tmp_path: Path, content, words):
    """Corrupt, or for another chip."""
    if isinstance(content, str):
        write_om(tmp_path / "bad.om", Sums(), Static({"x": (2, 3)}), soc=content)
    else:
        (tmp_path / "bad.om").write_bytes(content)
    with pytest.raises(ModelError, match=words):
        load("bad")
