import os
import shutil
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from builders.null_models import comes_true
from ge_backend.errors import ConfigError, ServerError
from ge_tools.tritonserver import ServerOptions, TritonServer, find_server, server
from ge_tools.tritonserver.directory import processes_of, shared_memory_of
from ge_tools.tritonserver.installation import running_python
from ge_tools.tritonserver.options import PORTS, free_ports

FAKE = Path(__file__).resolve().parents[2] / "fakes" / "tritonserver.py"


@pytest.fixture
def installation(tmp_path):
    """An installation whose server is the fake, run by this interpreter."""
    root = tmp_path / "installed"
    stub = root / "python_backend_stubs" / running_python() / "triton_python_backend_stub"
    library = root / "backends" / "python" / "libtriton_python.so"
    functions = library.with_name("triton_python_backend_utils.py")
    binary = root / "bin" / "tritonserver"
    for path in (stub, library, functions, binary, root / "lib" / "a.so"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    binary.write_text(f"#!{sys.executable}\n{FAKE.read_text()}")
    binary.chmod(0o755)
    return find_server(root)


@pytest.fixture
def build(installation, tmp_path):
    """A function that builds a server with a fault, its log in a file."""

    def build(fault: str = "", **fields) -> TritonServer:
        environment = {"FAKE": fault, **fields.pop("environment", {})}
        options = ServerOptions(
            repositories=(tmp_path,),
            log_file=tmp_path / "server.log",
            environment=environment,
            **fields,
        )
        return TritonServer(installation, options)

    return build


def assert_nothing_left(directory):
    assert processes_of(directory.run) == []
    assert shared_memory_of(directory.shm_prefix) == []
    assert not directory.path.exists()


def test_a_file_that_cannot_be_written_is_told_and_leaves_nothing(
    installation, tmp_path, monkeypatch
):
    """As the folder of a log that is not there, or a full disk: an error, not a traceback."""
    made = []
    make = server.ServerDirectory.make
    monkeypatch.setattr(server.ServerDirectory, "make", lambda: made.append(make()) or made[-1])
    log = tmp_path / "nowhere" / "server.log"
    options = ServerOptions(repositories=(tmp_path,), log_file=log)
    with pytest.raises(ServerError, match=f"cannot be started: .*No such file .*'{log}'"):
        TritonServer(installation, options).start()
    assert_nothing_left(made[0])


def test_inside_the_block_it_answers_and_outside_nothing_is_left(build):
    """Its addresses are those of this machine; its version is asked from it."""
    with build() as running:
        directory = running.directory
        assert running.options.api.version() == "2.51.0"
        assert running.http == f"127.0.0.1:{running.options.http_port}"
        assert running.metrics.endswith(f":{running.options.metrics_port}/metrics")
        assert processes_of(directory.run) == [running.pid]

    assert_nothing_left(directory)


def test_a_server_knows_what_it_can_do(build, monkeypatch):
    """Its flags from its help, its release from its metadata; numpy 2 is let in where it says so."""
    monkeypatch.setenv("FAKE_FLAGS", "http-restricted-api allow-client-shm grpc-infer-thread-count")
    with build(client_shm=True, grpc_threads=8, environment={"FAKE_VERSION": "2.70.0"}) as running:
        assert running.abilities.release == (2, 70)
        assert running.abilities.has("response_parameters")
        assert "--allow-client-shm=true" in running.log_tail()
        assert "--grpc-infer-thread-count=8" in running.log_tail()


def test_numpy_2_is_allowed_where_the_version_file_says_so(installation, build):
    """Before anything has started; a wheel has no such file, and is not guessed at."""
    (installation.binary.parents[1] / "TRITON_VERSION").write_text("2.52.0\n")
    installed = find_server(installation.binary)
    with TritonServer(installed, build().options) as running:
        assert "GE_NUMPY_2 allow" in running.log_tail()
    with build() as running:
        assert "GE_NUMPY_2" not in running.log_tail()


def test_memory_of_clients_needs_no_flag_where_it_is_always_allowed(build):
    """A server that does not know the flag would not start with it."""
    with build(client_shm=True) as running:
        assert "allow-client-shm" not in running.log_tail()


def test_an_option_that_the_release_has_not_is_refused(build):
    """With the release that has it."""
    with pytest.raises(ConfigError, match=r"no --grpc-infer-thread-count: .* from Triton 2\.57"):
        build(grpc_threads=4).start()


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("FAKE_VERSION", "2.43.0", "this is Triton 2.43; supported are releases from 2.44"),
        ("FAKE_FLAGS", "log-verbose", "knows no --http-restricted-api; supported are releases"),
    ],
)
def test_a_release_that_is_too_old_is_refused(build, monkeypatch, variable, value, said):
    """By what its metadata says, or before it starts by its help; nothing of it is left."""
    monkeypatch.setenv(variable, value)
    server = build()
    with pytest.raises(ServerError, match=said):
        server.start()
    with pytest.raises(ServerError, match="not running"):
        assert server.directory


def test_readiness_is_asked_for_with_the_key(build):
    """A server whose health is restricted would seem never to be ready."""
    restricted = ("--http-restricted-api=health,metadata:door=open",)
    with build("locked", arguments=restricted) as running:
        assert running.options.api.version() == "2.51.0"


def test_it_runs_in_an_empty_folder_with_this_interpreter_first(build, monkeypatch):
    """The server's libraries are for it alone: executors get back what was there before."""
    monkeypatch.setenv("LD_LIBRARY_PATH", "/mine")
    with build(environment={"GE_DEVICE": "null"}) as running:
        log = running.log_tail()
        directory = running.directory

    assert f"cwd {directory.cwd} []" in log
    assert f"--backend-directory={directory.backends}" in log
    assert f"shm-region-prefix-name={directory.shm_prefix}" in log
    assert f"GE_PYTHON {sys.executable}\n" in log
    assert "GE_LIBRARY_PATH /mine\n" in log
    assert "GE_DEVICE null" in log
    assert f"PATH {Path(sys.executable).parent}:" in log
    libraries = log.split("\nLD_LIBRARY_PATH ")[1].splitlines()[0].split(":")
    assert libraries[0].endswith("/lib")
    assert libraries[-1] == "/mine"


def test_the_ports_of_a_server_that_loads_its_models_are_not_free(build, monkeypatch):
    """It listens only when it has; of two that start at once both could have been given one."""
    starting = build()
    ours = {getattr(starting.options, f"{name}_port") for name in ("http", "grpc", "metrics")}
    others = set(PORTS) - ours
    told, spawn = [], TritonServer._spawn

    def spawned(self):
        with pytest.raises(ServerError, match="no 1 free ports") as caught:
            free_ports(1, but=others)
        told.append(caught.value)
        return spawn(self)

    assert set(free_ports(3, but=others)) == ours
    monkeypatch.setattr(TritonServer, "_spawn", spawned)
    with starting:
        assert starting.options.api.version() == "2.51.0"
    assert len(told) == 1


def test_a_port_that_was_taken_before_the_start_is_named(build):
    """By the time that the server has loaded its models nobody would look at it any more."""
    late = build()
    with socket.create_server(("127.0.0.1", late.options.grpc_port)):
        told = f"port {late.options.grpc_port} of 127.0.0.1 is in use; choose another"
        with pytest.raises(ServerError, match=f"^{told}$"):
            late.start()


def test_a_server_that_ends_as_it_starts_is_noticed_at_once(build):
    """The message has its code and the end of its log, and nothing is left."""
    begin = time.monotonic()
    dying = build("dies")
    with pytest.raises(ServerError, match=r"code 3 as it started; (.|\n)*no such luck"):
        dying.start()

    assert time.monotonic() - begin < 60
    cwd = dying.log_tail().split("cwd ")[1].split()[0]
    assert not Path(cwd).exists()


def test_a_configuration_that_cannot_be_read_is_told(build):
    """With line and column, the model, and none of the tables that follow in the log."""
    with pytest.raises(ServerError) as told:
        build("misreads").start()
    assert str(told.value).splitlines()[1:] == [
        "  Error parsing text-format X: 3:1: Expected y",
        "  Poll failed for model directory 'm': failed to read text proto",
    ]


def test_a_flag_that_is_unknown_is_told(build):
    """The usage that follows in the log is longer than what is shown of it."""
    with pytest.raises(ServerError) as told:
        build("flag").start()
    assert str(told.value).splitlines() == [
        "tritonserver ended with code 1 as it started:",
        "  unrecognized option '--no-such-flag'",
    ]


def test_what_earlier_starts_have_logged_is_not_told(build, tmp_path):
    """The log file is appended to: their reasons may be corrected by now."""
    log = tmp_path / "server.log"
    log.write_text("E1 \"failed to load 'a' version 1: corrected\"\nof an earlier start\n")
    dying = build("dies")
    with pytest.raises(ServerError, match="its log ends:") as told:
        dying.start()

    assert "no such luck" in str(told.value)
    assert "earlier start" not in str(told.value)
    assert "corrected" not in str(told.value)
    assert dying.log_tail().startswith("fake server")
    assert "of an earlier start" in log.read_text()


def test_a_server_that_is_never_ready_is_given_up(build):
    """After the time that it was given, and it is stopped."""
    unready = build("never ready", start_timeout_s=0.5)
    with pytest.raises(ServerError, match=r"not ready after 0.5 s"):
        unready.start()
    with pytest.raises(ServerError, match="not running"):
        _ = unready.directory


def test_a_server_deaf_to_sigterm_is_killed(build, monkeypatch):
    """After its exit timeout and some grace."""
    monkeypatch.setattr(server, "GRACE_S", 0.2)
    running = build("deaf", exit_timeout_s=0)
    running.start()
    directory = running.directory

    running.stop()
    assert running.wait() == 128 + signal.SIGKILL
    assert_nothing_left(directory)


def test_what_outlives_the_server_is_killed(build, monkeypatch):
    """Also in a session of its own, as executors are."""
    monkeypatch.setattr(server, "FAMILY_GRACE_S", 0.3)
    with build("straggler") as running:
        directory = running.directory
        assert len(processes_of(directory.run)) == 2

    assert_nothing_left(directory)


def test_interrupting_once_asks_and_twice_kills(build):
    """The first is a SIGTERM, to which a deaf server does not listen."""
    running = build("deaf", exit_timeout_s=0)
    running.start()
    try:
        running.interrupt()
        assert running.stopping
        os.kill(running.pid, 0)
        running.interrupt()
        assert running.wait() == 128 + signal.SIGKILL
    finally:
        running.stop()


def test_one_that_was_asked_to_end_and_does_not_is_killed(build, monkeypatch):
    """After its exit timeout and some grace: nobody may be there to ask a second time."""
    monkeypatch.setattr(server, "GRACE_S", 0.2)
    running = build("deaf", exit_timeout_s=0)
    running.start()
    rescue = threading.Timer(20, running.interrupt)  # the second time
    rescue.start()
    try:
        running.interrupt()
        begin = time.monotonic()
        assert running.wait() == 128 + signal.SIGKILL
        assert time.monotonic() - begin < 10
    finally:
        rescue.cancel()
        running.stop()


def test_one_that_waits_in_vain_is_ended_in_order(build):
    """It is not asked before the server is asked to end; the code is that of an orderly stop."""
    running, asked = build("deaf", exit_timeout_s=60), []
    running.start()
    rescue = threading.Timer(20, running.interrupt)
    rescue.start()
    try:
        running.interrupt()
        assert running.wait(lambda: asked.append(running.stopping) or len(asked) > 2) == 0
        assert asked == [True] * 3
    finally:
        rescue.cancel()
        running.stop()


def test_an_interrupt_while_it_starts_ends_the_waiting(build, tmp_path):
    """Stopping is not a failure to start."""
    unready, log = build("never ready"), tmp_path / "server.log"

    def interrupt():
        assert comes_true(lambda: log.exists() and "it listens" in log.read_text())
        unready.interrupt()

    threading.Thread(target=interrupt).start()
    unready.start()
    assert unready.wait() == 0
    unready.stop()


def test_an_interrupt_before_it_starts_is_not_lost(build):
    """The signal may arrive while the backends are being assembled."""
    early = build("never ready")
    early.interrupt()

    early.start()
    assert early.wait() in {0, 128 + signal.SIGTERM}
    early.stop()


def test_a_signal_that_another_thread_gets_is_handled_while_it_waits(build):
    """The kernel chooses the thread; waiting without end held up what the main one has to run."""
    running = build()
    running.start()
    before = signal.signal(signal.SIGUSR1, lambda *_: running.interrupt())

    def get():
        time.sleep(0.5)  # by then it waits
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        if not comes_true(lambda: running.stopping, 20):
            os.kill(running.pid, signal.SIGKILL)

    getting = threading.Thread(target=get)
    try:
        getting.start()
        assert running.wait() == 0
    finally:
        getting.join()
        signal.signal(signal.SIGUSR1, before)
        running.stop()


def test_stopping_twice_is_stopping_once(build):
    """As a `finally` after a context does."""
    running = build()
    running.start()
    running.stop()
    running.stop()

    with pytest.raises(ServerError, match="not running"):
        _ = running.directory


def test_without_a_log_file_the_message_points_to_the_terminal(installation, tmp_path, capfd):
    """The output went there already."""
    options = ServerOptions(repositories=(tmp_path,), environment={"FAKE": "dies"})
    with pytest.raises(ServerError, match="see its output above"):
        TritonServer(installation, options).start()

    assert "no such luck" in capfd.readouterr().out


def test_the_users_own_settings_for_executors_stay(build):
    """GE_PYTHON may name another interpreter, one that has the engines."""
    with build(environment={"GE_PYTHON": "/other/python", "GE_LIBRARY_PATH": "/cann"}) as running:
        log = running.log_tail()

    assert "GE_PYTHON /other/python\n" in log
    assert "GE_LIBRARY_PATH /cann\n" in log


def test_settings_that_name_files_mean_those_of_the_folder_it_is_started_in(
    build, monkeypatch, tmp_path
):
    """Its own folder is empty, and goes with it: what is kept there would be lost."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GE_ACL_CONFIG", "acl.json")
    monkeypatch.setenv("GE_VLLM_PYTHON", "python3.12")  # is looked for on PATH
    with build(environment={"GE_PYTHON": "venv/bin/python", "GE_CACHE_DIR": "kept"}) as running:
        log = running.log_tail()
    assert f"GE_PYTHON {tmp_path}/venv/bin/python\n" in log
    assert f"GE_CACHE_DIR {tmp_path}/kept\n" in log
    assert f"GE_ACL_CONFIG {tmp_path}/acl.json\n" in log
    assert "GE_VLLM_PYTHON python3.12\n" in log


@pytest.mark.parametrize("cache", ["off", "", "/var/cache/ge"])
def test_a_cache_that_is_no_name_of_a_file_there_stays(build, cache):
    """It may be turned off."""
    with build(environment={"GE_CACHE_DIR": cache}) as running:
        assert f"GE_CACHE_DIR {cache}\n" in running.log_tail()


def test_a_killed_server_is_cleaned_up_after(build):
    """Its code says so."""
    with build() as running:
        directory = running.directory
        os.kill(running.pid, signal.SIGKILL)
        assert running.wait() == 128 + signal.SIGKILL

    assert_nothing_left(directory)


def test_backends_may_be_gone_when_it_stops(build):
    """Somebody who cleans /tmp does not break the stop."""
    with build() as running:
        shutil.rmtree(running.directory.path)
