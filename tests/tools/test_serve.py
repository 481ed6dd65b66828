import signal
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ge_tools import serve
from ge_tools.main import build_parser, main
from ge_tools.tritonserver import Abilities, ServerOptions
from ge_tools.tritonserver.options import KEY_HEADER

HELP = Abilities(flags=frozenset())
# Stands for `ModelReloader`.
IDLE = SimpleNamespace(close=lambda: None, stubbed=set)
CONTROL = ("--model-control-mode=explicit", "--load-model=*")


class RecordedServer:
    """Stands for `TritonServer`: remembers what it was made with, ends when interrupted."""

    knows = HELP

    def __init__(self, installation, options):
        self.installation, self.options = installation, options
        self.http, self.grpc, self.metrics = "h:1", "h:2", "http://h:3/metrics"
        self.interrupts, self.entered, self.left = 0, False, False
        self.ended = threading.Event()
        self.pid, self.directory = 77, SimpleNamespace(run=Path("/run"))
        self.abilities = self.knows

    def __enter__(self):
        self.entered = True
        return self

    def __exit__(self, *_):
        self.left = True

    @property
    def stopping(self):
        return self.interrupts > 0

    def interrupt(self):
        self.interrupts += 1
        self.ended.set()

    def wait(self, in_vain):
        signal.raise_signal(self.signal)
        self.ended.wait(5)
        return 7


@pytest.fixture
def servers(monkeypatch):
    """Servers are recorded, signals' handlers are restored, and nothing is tied to its parent."""
    made = []

    def make(installation, options):
        made.append(RecordedServer(installation, options))
        made[-1].signal = signal.SIGTERM
        return made[-1]

    monkeypatch.setattr(serve, "TritonServer", make)
    monkeypatch.setattr(serve, "find_server", lambda path: path)
    monkeypatch.setattr(serve, "ModelReloader", lambda *_: IDLE)
    monkeypatch.setattr(serve, "die_with_parent", lambda: made.append("tied"))
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in numbers}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup may have started the tests
    yield made
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_it_announces_the_endpoints_and_returns_the_servers_code(
    servers, capsys, tmp_path, monkeypatch
):
    """A signal that arrives meanwhile goes to the server, which is left in order."""
    clock = iter([10.0, 12.5])
    monkeypatch.setattr(serve, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    code = main(["serve", "--model-repository", str(tmp_path), "--tritonserver", "/here"])

    tied, server = servers
    assert code == 7
    assert tied == "tied"
    assert server.installation == Path("/here")
    assert (server.entered, server.left, server.interrupts) == (True, True, 1)
    printed = capsys.readouterr().out
    assert printed.startswith("ge-backend: ready after 2.5 s\n")
    assert printed.split()[5:] == [
        "http",
        "http://h:1",
        "grpc",
        "h:2",
        "metrics",
        "http://h:3/metrics",
    ]


def test_a_repository_of_nothing_is_told(servers, capsys, tmp_path):
    """It is served all the same: models may come later."""
    assert main(["serve", "--model-repository", str(tmp_path)]) == 7
    assert f"{tmp_path} has no models; expected a folder for each" in capsys.readouterr().err
    (tmp_path / "encoder").mkdir()
    main(["serve", "--model-repository", str(tmp_path)])
    assert capsys.readouterr().err == ""


def test_what_only_some_releases_have_is_asked_for(servers, tmp_path):
    """Clients' shared memory, threads and pools of gRPC; by default nothing is."""
    main(["serve", "--model-repository", str(tmp_path)])
    options = servers[-1].options
    assert (options.client_shm, options.grpc_threads, options.grpc_response_pool) == (False, 0, 0)
    more = ["--client-shm", "--grpc-threads=8", "--grpc-response-pool=100"]
    main(["serve", "--model-repository", str(tmp_path), *more])
    options = servers[-1].options
    assert (options.client_shm, options.grpc_threads, options.grpc_response_pool) == (True, 8, 100)


def test_a_release_that_is_newer_than_any_tried_is_noted(servers, monkeypatch, capsys, tmp_path):
    """It is served all the same."""
    monkeypatch.setattr(RecordedServer, "knows", replace(HELP, release=(2, 99)))
    assert main(["serve", "--model-repository", str(tmp_path)]) == 7
    assert "ge-backend: Triton 2.99 is newer than 2.70" in capsys.readouterr().err


def test_it_may_outlive_its_parent(servers, tmp_path):
    """Only when asked to."""
    main(["serve", "--outlive-parent", "--model-repository", str(tmp_path)])

    assert "tied" not in servers


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_interrupt_the_server(servers, number):
    """Each of the three, each time it arrives."""
    server = RecordedServer(None, None)
    serve._pass_signals_on(server)

    signal.raise_signal(number)
    signal.raise_signal(number)
    assert server.interrupts == 2


def test_a_hang_up_that_nohup_has_ignored_stays_so(servers):
    """The terminal goes, the server stays. ^C is taken: in the background shells ignore it."""
    server = RecordedServer(None, None)
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    serve._pass_signals_on(server)
    signal.raise_signal(signal.SIGHUP)
    assert server.interrupts == 0
    signal.raise_signal(signal.SIGINT)
    assert server.interrupts == 1


def test_a_server_that_is_killed_is_told(servers, monkeypatch, capsys, tmp_path):
    """The kernel says nothing here; who asks the server to end need not be told that it has."""
    (tmp_path / "m").mkdir()
    arguments = ["serve", "--model-repository", str(tmp_path)]
    monkeypatch.setattr(RecordedServer, "wait", lambda server, _: 137)
    assert main(arguments) == 137
    assert "tritonserver was ended by signal 9 (Killed)" in capsys.readouterr().err
    monkeypatch.setattr(RecordedServer, "wait", lambda server, _: server.interrupt() or 137)
    assert main(arguments) == 137
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(RecordedServer, "wait", lambda server, _: 1)  # its own log says why
    assert main(arguments) == 1
    assert capsys.readouterr().err == ""


def test_options_become_those_of_the_server(tmp_path):
    """The device is machine-wide, so it goes by the environment; verbosity is the server's own."""
    arguments = [
        "serve", "--model-repository", str(tmp_path), "--host", "0.0.0.0", "--http-port", "1",
        "--grpc-port", "2", "--metrics-port", "3", "--device", "null", "--log-verbose", "2",
        "--workspace-pool", "12GiB", "--log-file", "x.log", "--start-timeout", "5", "--exit-timeout", "6", "--", "--id=me",
    ]  # fmt: skip

    options = serve._options(build_parser().parse_args(arguments))
    assert replace(options, control_key="") == ServerOptions(
        repositories=(tmp_path,),
        host="0.0.0.0",
        http_port=1,
        grpc_port=2,
        metrics_port=3,
        log_file=Path("x.log"),
        environment={"GE_DEVICE": "null", "GE_WORKSPACE_POOL": "12GiB"},
        arguments=("--log-verbose=2", *CONTROL, "--id=me"),
        start_timeout_s=5,
        exit_timeout_s=6,
    )


def test_a_pool_that_is_no_size_is_refused_before_anything_starts(servers, capsys, tmp_path):
    """It would else be told once per model, in the server's log."""
    arguments = ["--model-repository", str(tmp_path), "--workspace-pool", "12 apples"]
    assert main(["serve", *arguments]) != 0
    assert "--workspace-pool" in capsys.readouterr().err
    assert servers == ["tied"]


def test_without_options_the_server_has_its_usual_ports_and_no_setting(tmp_path):
    """8000, 8001 and 8002, on this machine only."""
    parsed = build_parser().parse_args(["serve", "--model-repository", str(tmp_path)])

    options = serve._options(parsed)
    assert (options.http_port, options.grpc_port, options.metrics_port) == (8000, 8001, 8002)
    assert (options.host, options.environment, options.arguments) == ("127.0.0.1", {}, CONTROL)


@pytest.mark.parametrize(
    ("further", "added"),
    [
        (["--model-control-mode=none"], []),
        (["--model-control-mode=explicit"], []),
        (["--load-model=m"], ["--model-control-mode=explicit"]),
    ],
)
def test_who_chooses_how_models_are_controlled_gets_that(tmp_path, further, added):
    """Without a choice all are loaded, and can be loaded anew when a stub has died."""
    arguments = ["serve", "--model-repository", str(tmp_path), "--", *further]
    options = serve._options(build_parser().parse_args(arguments))
    assert options.arguments == (*added, *further)
    assert bool(options.control_key) == bool(added)


def test_models_are_controlled_with_a_key_of_each_server(tmp_path):
    """Nobody knows it beforehand."""

    def key():
        arguments = ["serve", "--model-repository", str(tmp_path)]
        return serve._options(build_parser().parse_args(arguments)).control_key

    assert len(key()) >= 32
    assert key() != key()


@pytest.mark.parametrize(
    ("mine", "other"),
    [
        ("--http-restricted-api", "--grpc-restricted-protocol"),
        ("--grpc-restricted-protocol", "--http-restricted-api"),
    ],
)
def test_who_restricts_one_protocol_does_not_open_the_other(tmp_path, mine, other):
    """A load runs what it brings along, by whichever protocol it comes."""
    given = f"{mine}=model-repository:mine=1"
    arguments = ["serve", "--model-repository", str(tmp_path), "--", given]
    options = serve._options(build_parser().parse_args(arguments))
    keyed = f"model-repository:{KEY_HEADER}={options.control_key}"
    assert len(options.control_key) >= 32
    restricted = [flag for flag in options.flags(HELP) if "restricted" in flag]
    assert restricted == [f"{other}={keyed}", given]


def test_models_are_reloaded_with_the_key_that_http_asks_for(servers, monkeypatch, tmp_path):
    """One of the user's own, where he has given it; without it no model would be loaded anew."""
    apis = []
    monkeypatch.setattr(serve, "ModelReloader", lambda api, *_: apis.append(api) or IDLE)
    mine = "--http-restricted-api=model-repository:mine=1"
    main(["serve", "--model-repository", str(tmp_path), "--", mine])
    assert apis[0].keys == {"model-repository": ("mine", "1")}


def test_a_server_without_metrics_announces_none(servers, capsys, tmp_path):
    """Nobody listens there."""
    main(["serve", "--model-repository", str(tmp_path), "--", "--allow-metrics=false"])

    assert "metrics" not in capsys.readouterr().out


@pytest.mark.parametrize("device", ["cpu", "cuda:0", "npu"])
def test_the_device_reaches_every_model_that_names_none(servers, tmp_path, device):
    """By the environment of the server, which its stubs have too."""
    main(["serve", "--model-repository", str(tmp_path), "--device", device])
    assert servers[-1].options.environment == {"GE_DEVICE": device}
    main(["serve", "--model-repository", str(tmp_path)])
    assert servers[-1].options.environment == {}
