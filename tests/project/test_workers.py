"""A worker of the tests that dies."""

import subprocess
import sys

import pytest

from builders.roots import ROOT

FILES, FATAL = 24, 18
PLAIN = "def test_it():\n    pass\n"
# Once: the test is then given to another worker. Meanwhile the rest is done, and reported.
DYING = """
import os
import time
from pathlib import Path

def test_it():
    died = Path(__file__).with_suffix(".died")
    if not died.exists():
        died.touch()
        time.sleep(1)
        os._exit(1)
"""
CONFTEST = """
from workers import FileScheduling

def pytest_xdist_make_scheduler(config, log):
    return FileScheduling(config, log)
"""


def test_a_run_ends_though_a_worker_has_died(tmp_path):
    """Its test has failed, all others are run, and files that it had finished are not again."""
    pytest.importorskip("xdist")
    for number in range(FILES):
        text = DYING if number == FATAL else PLAIN
        (tmp_path / f"test_{number:02}.py").write_text(text)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    options = ["--numprocesses=2", "--dist=loadfile", "--no-loadscope-reorder"]
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"--rootdir={tmp_path}", *options, str(tmp_path)],
        env={"PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert f"crashed while running 'test_{FATAL}.py::test_it'" in done.stdout
    assert f"1 failed, {FILES} passed" in done.stdout
