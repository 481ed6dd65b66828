import socket

import pytest

from ge_openai.address import family_of, host_port, reached_at


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
