import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from ge_tools.tritonserver import parent_death

SCRIPT = str(Path(parent_death.__file__))


def test_the_command_replaces_the_script_and_its_code_is_returned():
    """One process, not two: what is signalled is the command."""
    script = "import os, sys; print(os.getpid()); sys.exit(7)"
    command = [sys.executable, SCRIPT, str(os.getpid()), sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        output, _ = process.communicate()

    assert int(output) == process.pid
    assert process.returncode == 7


def test_a_process_ends_when_the_one_that_started_it_is_killed():
    """A kill leaves no time to clean up, and none is needed."""
    parent = (
        "import os, subprocess, sys, time\n"
        f"command = [sys.executable, {SCRIPT!r}, str(os.getpid()), '/bin/sleep', '60']\n"
        "print(subprocess.Popen(command).pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    wait_until(lambda: Path(f"/proc/{child}/cmdline").read_bytes().startswith(b"/bin/sleep"))

    process.send_signal(signal.SIGKILL)
    process.communicate()
    wait_until(lambda: not is_running(child))


def test_a_parent_that_has_gone_already_is_noticed():
    """Between starting and tying the parent may have ended; the command must not run then."""
    done = subprocess.run(
        [sys.executable, SCRIPT, "1", "/bin/echo", "ran"],
        check=False,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 1
    assert done.stdout == ""
    assert "the parent ended" in done.stderr


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
