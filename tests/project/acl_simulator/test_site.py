"""The simulator as the module `acl` of another process."""

import json
import os
import subprocess

import pytest

from acl_simulator.environment import from_environment, to_environment
from acl_simulator.site import SimulatedPython
from builders.acl_rig import ok

PROGRAM = """
import acl, sys
assert acl.init() == 0
assert acl.rt.set_device(1) == 0
print(acl.rt.malloc(64, 0)[1], acl.rt.get_mem_info(1)[1], acl.rt.malloc(64, 0)[1])
print([path for path in sys.path if path.endswith("tests")])
try:
    acl.rt.free(5)
except AssertionError:
    pass
"""


@pytest.fixture
def python(tmp_path):
    return SimulatedPython(
        tmp_path, devices=2, hbm_bytes=1 << 20, faults=[{"name": "rt.malloc", "code": 207001}]
    )


def run(python, *arguments):
    return subprocess.run(
        [python.path, *arguments],
        env={**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": "elsewhere"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )


def test_another_interpreter_imports_it(python):
    assert python.report() == {}
    result = run(python, "-c", PROGRAM)
    assert result.stdout.splitlines() == ["207001 1048576 0", "[]"]
    report = python.report()
    assert report["calls"]["rt.malloc"] == 2
    assert "not a device's address" in report["misuses"][0]
    assert report["finalised"] is False


def test_faults_are_sent_to_the_running_process(python):
    python.fail("init", 507000, times=1)
    assert python.is_pending
    with pytest.raises(subprocess.CalledProcessError):
        run(python, "-c", PROGRAM)
    assert not python.is_pending
    run(python, "-c", PROGRAM)  # the next one is well


def test_options_go_through_the_environment():
    options = {"devices": 3, "hbm_bytes": 4096, "soc": "Ascend310P3", "without": ["get_version"]}
    sim = from_environment({**to_environment(**options), "ACL_SIMULATOR_FAULTS": json.dumps([])})
    ok(sim.init())
    ok(sim.rt.set_device(2))
    assert ok(sim.rt.get_mem_info(1)) == (4096, 4096)
    assert sim.get_soc_name() == "Ascend310P3"
    assert not hasattr(sim, "get_version")


def test_text_needs_no_quotes():
    sim = from_environment({"ACL_SIMULATOR_SOC": "Ascend310P3", "ACL_SIMULATOR_DELAY": "0.5"})
    assert sim.get_soc_name() == "Ascend310P3"
