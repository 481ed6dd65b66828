import socket

import pytest

from ge_backend.errors import ConfigError
from ge_openai.address import (
    addresses_here,
    family_of,
    host_port,
    numeric,
    reached_at,
)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "127.0.0.1"),
        ("0.0.0.0", "0.0.0.0"),
        ("::1", "::1"),
        ("0:0:0::0", "::"),
    ],
)
def test_a_host_becomes_an_address_in_numbers(host, address):
    """Triton's HTTP listens at no name."""
    assert numeric(host) == address


def test_a_name_of_ipv6_alone_has_its_address(monkeypatch):
    """Where there is one of IPv4, that is taken."""
    six = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fd00::7", 0, 0, 0))
    four = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.7", 0))
    for found, address in (([six], "fd00::7"), ([six, four], "10.0.0.7")):
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, found=found, **__: found)
        assert numeric("box") == address


@pytest.mark.parametrize("host", ["", "no.such.host.invalid", "a" * 300, "1.2.3.4.5"])
def test_a_host_without_an_address_is_refused(host):
    """At once: a server there would never be ready."""
    with pytest.raises(ConfigError, match=r"host '.*' has no address: .*0\.0\.0\.0 for all"):
        numeric(host)


@pytest.mark.parametrize(
    ("host", "here"),
    [("127.0.0.7", {"127.0.0.7"}), ("192.0.2.1", set()), ("2001:db8::1", set()), ("a..b", set())],
)
def test_addresses_of_another_machine_are_not_here(host, here):
    """Source: RFC 5737 and RFC 3849: no machine has these two."""
    assert addresses_here(host) == here


@pytest.mark.parametrize(
    ("host", "local"),
    [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("10.1.2.3", "10.1.2.3"), ("fd00::7", "fd00::7")],
)
def test_what_listens_everywhere_is_reached_by_loopback(host, local):
    """What listens at one address is reached there."""
    assert reached_at(host) == local


def test_ipv6_stands_in_brackets():
    """Else its colons and the port's could not be told apart."""
    assert host_port("::1", 8001) == "[::1]:8001"
    assert host_port("localhost", 8001) == "localhost:8001"
    assert family_of("::1") == socket.AF_INET6
    assert family_of("127.0.0.1") == socket.AF_INET
