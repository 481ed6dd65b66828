"""`ge-backend health` says what is wrong and ends with 1, or that nothing is."""

import socket
import time

import pytest

from builders.server_http import ServerHttp
from ge_backend.executor.process import host_processes
from ge_tools import health as health_module
from ge_tools.health import arguments_of, server_at
from ge_tools.main import main
from ge_tools.tritonserver import health
from ge_tools.tritonserver.api import TIMEOUT_S, ServerApi


@pytest.fixture
def server(monkeypatch):
    server = ServerHttp()
    server.models(m="READY")
    server.config("m", backend="ge", instance_group=[{"count": 1}])
    monkeypatch.setattr(health, "stubs_of", lambda pid: [])
    yield server
    server.close()


def ask(server, *arguments):
    return main(["health", "--http", f"127.0.0.1:{server.port}", *arguments])


def test_a_dead_stub_is_told(server, monkeypatch, capsys):
    """The server's own word does not count where its stubs can be seen."""
    monkeypatch.setattr(health_module, "server_at", lambda host, port: 7)
    assert ask(server) == 1
    assert "1 of its 1 stubs have died" in capsys.readouterr().err


def test_from_elsewhere_the_servers_word_counts(server, monkeypatch, capsys):
    """Its processes are not seen."""
    monkeypatch.setattr(health_module, "server_at", lambda host, port: 0)
    assert ask(server) == 0
    assert capsys.readouterr().out == "healthy\n"


def test_a_server_here_is_not_taken_for_one_elsewhere(server, monkeypatch, tmp_path):
    """That of another machine may have the same port."""
    monkeypatch.setattr(host_processes, "PROC", tmp_path)
    (tmp_path / "7").mkdir()
    for here, code in (("127.0.0.1", 1), ("127.0.0.2", 0)):
        words = "tritonserver", f"--http-address={here}", f"--http-port={server.port}"
        (tmp_path / "7" / "cmdline").write_text("\0".join(words))
        assert ask(server) == code


PATHS = ("/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/stats", "/v2/models/m/config")
GROUPS = "health,metadata,statistics,model-config"


def test_the_keys_of_a_server_here_are_those_it_was_started_with(
    server, monkeypatch, tmp_path, capsys
):
    """So the probe of a container needs none."""
    server.restricts.update(dict.fromkeys(PATHS, "door"))
    monkeypatch.setattr(host_processes, "PROC", tmp_path)
    (tmp_path / "7").mkdir()
    words = [
        *("tritonserver", "--http-address=127.0.0.1", f"--http-port={server.port}"),
        *("--http-restricted-api", f"{GROUPS}:door=open"),
    ]
    (tmp_path / "7" / "cmdline").write_text("\0".join(words))
    server.serves()
    assert ask(server, "--ready") == 0, capsys.readouterr().err
    assert {headers["door"] for headers in server.headers} == {"open"}


def test_from_elsewhere_keys_are_given(server, monkeypatch, capsys):
    """As the server was given them; without them its refusal is told."""
    server.restricts.update(dict.fromkeys(PATHS, "door"))
    monkeypatch.setattr(health_module, "server_at", lambda host, port: 0)
    assert ask(server, "--ready") == 1
    assert "restricted, expecting header 'door'" in capsys.readouterr().err
    assert ask(server, "--ready", f"--http-restricted-api={GROUPS}:door=open") == 0


@pytest.mark.parametrize("given", ["health", "health:door", "healthy:door=open", ":door=open"])
def test_keys_that_are_none_are_refused(server, capsys, given):
    """With what was expected."""
    assert ask(server, f"--http-restricted-api={given}") == 2
    assert f"{given!r}: expected GROUPS:HEADER=KEY, with groups of" in capsys.readouterr().err


def test_readiness_is_asked_for(server, monkeypatch, capsys):
    """Alive while models load is not ready."""
    monkeypatch.setattr(health_module, "server_at", lambda host, port: 0)
    del server.answers["GET", "/v2/health/ready"]
    assert ask(server) == 0
    assert ask(server, "--ready") == 1
    assert "is not ready" in capsys.readouterr().err


def test_a_server_that_is_gone_is_told(server, capsys):
    """With the address that was asked."""
    server.close()
    assert ask(server) == 1
    assert f"127.0.0.1:{server.port} does not answer, or" in capsys.readouterr().err


def test_the_metrics_port_is_no_server(server, capsys):
    """It answers any path with 200 and nothing."""
    server.answers["GET", "/v2"] = None
    assert ask(server) == 1
    assert "is not its HTTP port" in capsys.readouterr().err


def test_an_address_of_ipv6_has_brackets(server, monkeypatch):
    """As `ge-backend serve` prints it."""
    asked = []
    monkeypatch.setattr(
        health_module, "ServerApi", lambda *to, **_: asked.append(to) or ServerApi(*to)
    )
    assert main(["health", "--http", f"[::1]:{server.port}"]) == 1
    assert asked == [("::1", server.port)]


@pytest.mark.parametrize("address", ["localhost", "localhost:99999"])
def test_an_address_without_a_port_is_refused(capsys, address):
    """With what was expected."""
    assert main(["health", "--http", address]) == 2
    assert "expected HOST:PORT" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["a..b", "a b", "[::1", "a" * 64])
def test_a_host_that_no_name_can_be_does_not_answer(capsys, host):
    """One line, as for any other that is not there."""
    assert main(["health", "--http", f"{host}:8000"]) == 1
    assert capsys.readouterr().err.startswith(f"ge-backend: the server at {host}:8000 does not")


def test_a_server_that_hangs_is_told(monkeypatch, capsys):
    """Before the probes of the files in deploy/ give up, who would throw the reason away."""
    monkeypatch.setattr(health_module, "ANSWER_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        begin = time.monotonic()
        assert main(["health", "--http", f"127.0.0.1:{hanging.getsockname()[1]}"]) == 1
    assert time.monotonic() - begin < TIMEOUT_S
    assert "does not answer" in capsys.readouterr().err


def test_a_server_is_known_by_its_port(processes):
    """The flag that came last counts; without one it is Triton's default."""
    processes(10, "/opt/bin/tritonserver", "--http-port=1", "--http-port=27000")
    processes(11, "/opt/bin/tritonserver", "--model-repository=/m")
    processes(12, "/usr/bin/python3", "--http-port=5")
    processes(13)  # a zombie
    processes(14, "tritonserver", "--http-port", "27001", "--http-port-too=3", "--model=x")
    processes(15, "tritonserver", "--http-port=many", "--http-port")
    ports = (27000, 27001, 8000, 5, 1)
    assert [server_at("127.0.0.1", port) for port in ports] == [10, 14, 11, 0, 0]


def test_a_server_is_known_by_its_address(processes):
    """Several machines' servers have the same port, and so may several of one machine."""
    processes(10, "tritonserver", "--http-address=0.0.0.0", "--http-address=127.0.0.1")
    processes(11, "tritonserver", "--http-address", "127.0.0.2")
    processes(12, "tritonserver", "--http-address=ipv6:::", "--http-port=1")
    hosts = ("127.0.0.1", "localhost", "0.0.0.0", "127.0.0.2", "127.0.0.3")
    assert [server_at(host, 8000) for host in hosts] == [10, 10, 10, 11, 0]
    assert [server_at(host, 1) for host in hosts] == [12] * 5


def test_what_a_server_was_started_with_is_seen(processes):
    """Of none there is nothing."""
    processes(10, "tritonserver", "--http-restricted-api", "health:a=1")
    assert arguments_of(10) == ["tritonserver", "--http-restricted-api", "health:a=1"]
    assert arguments_of(0) == []


@pytest.mark.parametrize("host", ["192.0.2.1", "a..b"])
def test_a_server_of_another_machine_is_not_here(processes, host):
    """Source: RFC 5737: no machine has that address."""
    processes(10, "tritonserver")
    assert server_at(host, 8000) == 0
