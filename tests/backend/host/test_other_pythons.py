"""What stubs of newer releases run: this code on Python 3.12 and 3.13, with numpy 2.

Containers from 24.11 on have them (docs/releases.md), and no server of a wheel does. Engines are not
installed there, and neither are the other roots.
"""

import os
import re
import subprocess

import pytest

from builders.environments import NotHere, find_python, installed
from builders.roots import ROOT

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

# tritonclient has the message that a config.pbtxt is read as.
ASKED = ("numpy>=2", "hypothesis", "pytest", "pytest-timeout", "tritonclient[grpc]")
FOLDERS = ("host", "serving/batching", "serving/sequence", "model/layout")
MIN_TESTS = 600
HAS = "import sys, numpy; print(*sys.version_info[:2], numpy.__version__)"


@pytest.mark.parametrize("version", [(3, 12), (3, 13)], ids=["3.12", "3.13"])
def test_stub_code_runs_on_another_python_with_numpy_2(version, tmp_path):
    """All tests of what a stub does with requests pass there, bar those that need an engine."""
    try:
        python = installed(ASKED, "pythons", find_python(version), version)
    except NotHere as error:
        pytest.skip(str(error))
    has = subprocess.run([str(python), "-c", HAS], check=True, capture_output=True, text=True)
    assert re.match(rf"{version[0]} {version[1]} [2-9]\.", has.stdout)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        "GE_ABSENT": "ge_text,ge_openai,ge_tools",
        "GE_NUMPY_2": "allow",
        "PYTHONPATH": str(ROOT / "backend" / "ge"),
        "TEST_PYTHON": str(python),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(tmp_path / "examples"),
    }
    command = [str(python), "-m", "pytest", "-q", "-m", "not long", "-p", "no:cacheprovider"]
    command += [f"--basetemp={tmp_path / 'tests'}", *(f"tests/backend/{name}" for name in FOLDERS)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed
    assert int(passed[1]) > MIN_TESTS
