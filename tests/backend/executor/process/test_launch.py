"""How an executor is reached: its environment and its interpreter."""

import json
import logging
import os
import resource
import subprocess
import sys

import pytest

from builders.null_models import (
    address_in,
    comes_true,
    interpreter,
    num_descriptors,
    run_values,
    write_null,
)
from ge_backend.errors import ConfigError, DeviceUnavailable, ExecutorLost
from ge_backend.executor.client import executor_connection
from ge_backend.executor.client.session import Session
from ge_backend.executor.process.inline import connect_inline
from ge_backend.executor.process.launch import connect

PATHS = os.pathsep.join(sys.path)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


@pytest.mark.parametrize("python", ["/nonexistent/python", "/etc/passwd", "/"])
def test_an_interpreter_that_does_not_start_is_named(folder, python):
    """A path that is no program leads to the setting that has to change, and leaves nothing."""
    before = num_descriptors()
    with pytest.raises(DeviceUnavailable, match="GE_PYTHON"):
        connect(address_in(folder, python=python))
    assert comes_true(lambda: num_descriptors() <= before)


@pytest.mark.parametrize("more", range(6))
def test_descriptors_that_are_used_up_are_named(folder, more):
    """Wherever they end on the way; who waits for the executor tries again over this error."""
    before = num_descriptors()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open("/dev/null", os.O_RDONLY)
    os.close(lowest)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + more, hard))
        with pytest.raises(DeviceUnavailable, match=r"Too many open files; see .*ulimit"):
            connect(address_in(folder))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert comes_true(lambda: num_descriptors() <= before)


def test_an_interpreter_that_ends_without_a_report_is_named(folder, tmp_path):
    """A program that is no Python with this package cannot pass for an executor."""
    python = interpreter(tmp_path, "exit 3")
    before = num_descriptors()
    with pytest.raises(DeviceUnavailable, match="ended with status 3 while it started"):
        connect(address_in(folder, python=python))
    assert not folder.exists()
    assert comes_true(lambda: num_descriptors() <= before)


def test_an_executor_that_is_killed_while_it_starts_is_started_again(folder, tmp_path):
    """A death by a signal may be a stranger's doing: it is tried again, but not for ever."""
    count = tmp_path / "count"
    python = interpreter(tmp_path, f"printf x >> {count}; kill -9 $$")
    with pytest.raises(ExecutorLost, match="5 times in a row"):
        connect(address_in(folder, python=python))
    assert count.read_text() == "x" * 5
    assert not folder.exists()


def test_the_starters_environment_and_arguments_reach_the_interpreter(folder, tmp_path):
    """The interpreter gets the entry module, a private working directory and the clean environment."""
    told = tmp_path / "told"
    python = interpreter(tmp_path, f'pwd > {told}; echo "$@" >> {told}; env >> {told}; exit 3')
    with pytest.raises(DeviceUnavailable):
        connect(address_in(folder, python=python))
    lines = told.read_text().splitlines()
    assert lines[0] == str(folder)
    assert lines[1].startswith("-m ge_backend.executor.process.main --device=null")
    assert f"--owner={os.getpid()}" in lines[1]
    assert "PYTHONSAFEPATH=1" in lines


def test_an_executor_that_always_vanishes_is_given_up(folder, tmp_path):
    """A program that claims to be ready but never listens is not started for ever."""
    count = tmp_path / "count"
    body = (
        "import os, sys\n"
        f"open({str(count)!r}, 'a').write('x')\n"
        "ready = next(a for a in sys.argv if a.startswith('--ready=')).partition('=')[2]\n"
        f"os.write(int(ready), {json.dumps({})!r}.encode())\n"
    )
    (tmp_path / "fake.py").write_text(body)
    python = interpreter(tmp_path, f'exec {sys.executable} {tmp_path / "fake.py"} "$@"')
    with pytest.raises(ExecutorLost, match="5 times in a row"):
        connect(address_in(folder, python=python))
    assert count.read_text() == "x" * 5


def test_an_executor_that_ends_while_it_reports_has_not_started(folder, tmp_path):
    """Half a report is none."""
    body = (
        "import os, sys\n"
        "ready = next(a for a in sys.argv if a.startswith('--ready=')).partition('=')[2]\n"
        "os.write(int(ready), b'{\"error\": ')\n"
        "sys.exit(3)\n"
    )
    (tmp_path / "fake.py").write_text(body)
    python = interpreter(tmp_path, f'exec {sys.executable} {tmp_path / "fake.py"} "$@"')
    with pytest.raises(DeviceUnavailable, match="ended with status 3 while it started"):
        connect(address_in(folder, python=python))


def test_a_folder_that_is_not_private_is_refused(folder):
    """An executor is neither started nor reached in a folder that others can write to."""
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match="nobody else can write"):
        connect(address_in(folder))
    assert list(folder.iterdir()) == []


def test_an_executor_of_another_user_is_refused(monkeypatch):
    """Whoever listens must be this user: tensors are not shown to others."""
    uid = os.getuid()
    monkeypatch.setattr(executor_connection, "peer_uid", lambda _: uid + 1)
    with pytest.raises(DeviceUnavailable, match=f"user {uid + 1}"):
        connect_inline("null")


def test_losing_an_executor_is_not_logged_while_all_is_well(tmp_path, caplog):
    """A session that opens, runs and closes writes no line."""
    source = write_null(tmp_path / "model.null")
    with caplog.at_level(logging.DEBUG):
        session = Session(
            lambda: connect_inline("null"), source, arena_bytes=64, on_restart=lambda: None
        )
        run_values(session, 1)
        session.close()
    assert caplog.text == ""


# An executor whose driver hangs, and that waits for it for half a second.
HANGING = """
import functools, sys, time
from ge_backend.executor.process import listener, main
del sys.argv[1:3]
main.bounded = functools.partial(listener.bounded, 0.5)
main.open_device = lambda *_, **__: time.sleep(1000)
main.main()
"""


def test_an_executor_that_hangs_and_lost_its_starter_keeps_nobody_out(folder, tmp_path):
    """It ends by itself, and with it its hold of the lock, for which all others wait."""
    (tmp_path / "hanging.py").write_text(HANGING)
    python = interpreter(
        tmp_path, f'exec {sys.executable} {tmp_path / "hanging.py"} "$@" 2>{tmp_path / "output"}'
    )
    code = f"""
import os
from pathlib import Path
from builders.null_models import address_in
from ge_backend.executor.process.launch import connect
connect(address_in(Path({str(folder)!r}), python={python!r}, owner_pid={os.getpid()}))
"""
    starter = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": PATHS}
    )
    output = tmp_path / "output"
    assert comes_true(output.exists)
    starter.kill()
    starter.wait()
    connect(address_in(folder)).close()
    assert "Timeout" in output.read_text()
    assert comes_true(lambda: not folder.exists())
