import socket

import pytest

from ge_backend.errors import ConfigError
from ge_tools.tritonserver.addresses import addresses_here, numeric


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
