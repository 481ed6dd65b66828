"""The port of the API; tests/server/test_openai.py has what is served there."""

import socket

import pytest

from ge_backend.errors import ServerError
from ge_backend.openai.front import OpenAIFront
from ge_backend.openai.options import FrontOptions


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_its_port_is_taken_before_it_serves(host):
    """No other that listens can have it meanwhile, though both may use an address again."""
    front = OpenAIFront(FrontOptions(url="", host=host, port=0))
    port = int(front.url.rpartition(":")[2])
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind((host, port))
    with pytest.raises(ServerError, match=f"port {port} of {host} cannot be had"):
        OpenAIFront(FrontOptions(url="", host=host, port=port))
    with front:
        pass


@pytest.mark.parametrize(
    ("host", "shown"),
    [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]"), ("localhost", "localhost")],
)
def test_its_url_is_one_that_clients_can_call(host, shown):
    """What listens everywhere is called by loopback."""
    with OpenAIFront(FrontOptions(url="", host=host, port=0)) as front:
        assert front.url.rpartition(":")[0] == f"http://{shown}"
