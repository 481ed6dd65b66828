"""A server is found by its command line."""

import pytest

from ge_tools.tritonserver.stubs import arguments_of, server_at


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
