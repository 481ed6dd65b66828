"""Engines report to nobody."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("onnxruntime")

CODE = """
from pathlib import Path
import ge_backend.engines.ort.session
for entry in Path("/proc/self/fd").iterdir():
    try:
        print(entry.readlink())
    except FileNotFoundError:
        pass
"""
# With one of these ONNX Runtime sends nothing by itself.
QUIET = ("CI", "ORT_DISABLE_TELEMETRY", "ORT_RUNNING_UNIT_TESTS")


def opened(home):
    """Return what is open in a process that has imported ONNX Runtime through this package."""
    inherited = {name: value for name, value in os.environ.items() if name not in QUIET}
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**inherited, "HOME": str(home), "XDG_CACHE_HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


def test_onnx_runtime_keeps_no_record_to_send(tmp_path):
    """From 1.29 on it would open a database in the user's cache when it is imported."""
    assert "onnxruntime.db" not in opened(tmp_path)
    assert not list(tmp_path.rglob("onnxruntime.db"))


def test_who_wants_it_on_can_have_it():
    """A value of the user's own is left alone."""
    code = "import os, ge_backend.device; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    environment = {**os.environ, "ORT_DISABLE_TELEMETRY": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "0\n"
