"""What takes too long ends its process, and says what it was at."""

import subprocess
import sys

HANG = """
import ctypes, time
from ge_backend.executor.process.bounded import bounded
with bounded({}):
    {}
"""
# A library that keeps the interpreter's lock: no Python thread runs then.
HOLDING = "ctypes.PyDLL(None).sleep(60)"


def ended(code, bound_s=0.3):
    """Return the status and the output of a program; the bound would end this one, too."""
    command = [sys.executable, "-c", HANG.format(bound_s, code)]
    process = subprocess.run(command, capture_output=True, check=False, text=True, timeout=30)
    return process.returncode, process.stderr


def test_what_hangs_ends_and_says_where():
    """Also in a library that lets no thread of Python's run."""
    for code in ("time.sleep(60)", HOLDING):
        status, output = ended(code)
        assert status == 1
        assert "Timeout (0:00:00.3" in output
        assert 'File "<string>", line 5' in output


def test_what_is_done_in_time_goes_on():
    """The bound is gone with the block, however that ends."""
    assert ended("pass\ntime.sleep(1.5)", bound_s=1) == (0, "")
    assert ended("1 / 0", bound_s=10)[1].rstrip().endswith("ZeroDivisionError: division by zero")
