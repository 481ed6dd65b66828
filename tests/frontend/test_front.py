"""The port of the API; tests/server/test_openai.py has what is served there."""

import contextlib
import signal
import socket
import subprocess
import sys
import time
from asyncio import BaseEventLoop
from types import SimpleNamespace

import pytest

from builders.waiting import comes_true
from ge_openai import front as front_module
from ge_openai import triton
from ge_openai.front import OpenAIFront
from ge_openai.options import FrontError, FrontOptions
from ge_openai.triton import TritonConnection


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_its_port_is_taken_before_it_serves(host):
    """No other that listens can have it meanwhile, though both may use an address again."""
    front = OpenAIFront(FrontOptions(url="", host=host, port=0))
    port = int(front.url.rpartition(":")[2])
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind((host, port))
    with pytest.raises(FrontError, match=f"port {port} of {host} cannot be had"):
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


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
PAGE = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
BODY = HEAD + b"Content-Length: 9\r\n\r\n"


@pytest.fixture
def opened():
    """Opens connections to a front and sends what is given; they are closed in the end."""
    with contextlib.ExitStack() as held:

        def opened(front, begun=b""):
            host, _, port = front.url.removeprefix("http://").rpartition(":")
            made = held.enter_context(socket.create_connection((host, int(port)), timeout=10))
            made.sendall(begun)
            return made

        yield opened


def send_slowly(connection, block, pause_s):
    """Send byte by byte, with a pause before each."""
    for byte in block:
        time.sleep(pause_s)
        connection.sendall(bytes([byte]))


@pytest.mark.parametrize("begun", [b"", HEAD, BODY + b"{"])
def test_a_request_that_does_not_come_whole_ends_its_connection(monkeypatch, opened, begun):
    """After a while, in which the rest may still come."""
    monkeypatch.setattr(front_module, "SEND_TIMEOUT_S", 0.5)
    with OpenAIFront(FrontOptions(url="localhost:1", port=0)) as front:
        late = time.monotonic()
        assert opened(front, begun).recv(1) == b""
        assert 0.4 < time.monotonic() - late < 8


def read_page(connection):
    """Read the answer to `PAGE`."""
    page = b""
    while b"</html>" not in page:
        page += (more := connection.recv(1 << 20))
        assert more, "the connection ended before the page did"


@pytest.fixture
def hurry(monkeypatch):
    """Opens a connection that has time for its first head, and half a second for what is next."""

    def hurry(front, opened):
        made = opened(front)
        # By then it has its time, however late the head comes.
        connections = front._server.server_state.connections
        assert comes_true(lambda: any(one.end for one in list(connections)))
        monkeypatch.setattr(front_module, "SEND_TIMEOUT_S", 0.5)
        return made

    return hurry


def test_a_body_whose_head_came_before_an_answer_ends_its_connection(opened, hurry):
    """Of two requests that are sent at once, the second may lack its body."""
    with OpenAIFront(FrontOptions(url="localhost:1", port=0)) as front:
        answered = hurry(front, opened)
        answered.sendall(PAGE + BODY)
        read_page(answered)
        assert answer_of(answered) == ""


def test_a_head_that_comes_byte_by_byte_ends_its_connection(opened, hurry):
    """Each byte is no reason to wait longer."""
    with OpenAIFront(FrontOptions(url="localhost:1", port=0)) as front:
        answered = hurry(front, opened)
        with pytest.raises(ConnectionError):
            send_slowly(opened(front), HEAD * 2, 0.05)
        answered.sendall(PAGE)  # and its next head
        read_page(answered)
        with pytest.raises(ConnectionError):
            send_slowly(answered, HEAD * 2, 0.05)


def test_an_answer_and_a_body_may_take_longer(monkeypatch, opened):
    """As long as the body goes on, and the answer's end is what is waited for."""
    limit_s, passed = 2000.0, [0.0]
    monkeypatch.setattr(front_module, "SEND_TIMEOUT_S", limit_s)
    monkeypatch.setattr(BaseEventLoop, "time", lambda _: time.monotonic() + passed[0])
    with OpenAIFront(FrontOptions(url="localhost:1", port=0)) as front:
        slow = opened(front, BODY)

        def has_its_time():
            """Whether what was sent last has come, and the next part is waited for."""
            ends = [one.end for one in list(front._server.server_state.connections)]
            return any(
                end and end.when() - passed[0] > time.monotonic() + limit_s / 2 for end in ends
            )

        for byte in b"not JSON.":
            assert comes_true(has_its_time)
            passed[0] += 0.75 * limit_s
            slow.sendall(bytes([byte]))
        assert slow.recv(100).startswith(b"HTTP/1.1 400 ")


def answer_of(connection):
    """Return the first line of what comes; "" where the connection was closed."""
    with contextlib.suppress(ConnectionError):
        return connection.recv(1 << 16).partition(b"\r\n")[0].decode()
    return ""


def is_open(connection):
    """Whether nothing has come, the end neither."""
    connection.setblocking(False)
    try:
        connection.recv(1)
    except BlockingIOError:
        return True
    except ConnectionError:
        pass
    return False


@pytest.mark.parametrize("begun", [b"", HEAD, BODY, PAGE, PAGE + BODY])
def test_who_says_nothing_leaves_room_for_who_asks(monkeypatch, opened, begun):
    """Those that have been silent longest go first."""
    monkeypatch.setattr(front_module, "MAX_CONNECTIONS", 20)
    with OpenAIFront(FrontOptions(url="localhost:1", port=0)) as front:
        silent = []
        for _ in range(60):
            silent.append(opened(front, begun))
            if begun.startswith(PAGE):
                read_page(silent[-1])
        assert answer_of(opened(front, PAGE)) == "HTTP/1.1 200 OK"
        assert sum(map(is_open, silent)) < 20
        assert is_open(silent[-1])
        for each in silent:
            each.close()


def test_who_waits_for_an_answer_keeps_the_connection(monkeypatch, opened):
    """However many ask besides; beyond the limit they are refused."""
    asked, ready = [], TritonConnection.ready
    monkeypatch.setattr(TritonConnection, "ready", lambda self: asked.append(1) or ready(self))
    monkeypatch.setattr(triton, "READY_TIMEOUT_S", 60.0)
    monkeypatch.setattr(front_module, "MAX_CONNECTIONS", 4)
    with socket.create_server(("127.0.0.1", 0)) as still:
        url = f"127.0.0.1:{still.getsockname()[1]}"
        with OpenAIFront(FrontOptions(url=url, port=0, exit_timeout_s=1)) as front:
            waiting = [opened(front, PAGE.replace(b"/ ", b"/health ")) for _ in range(3)]
            assert comes_true(lambda: len(asked) == 3)
            for _ in range(3):
                refused = opened(front, PAGE)
                more = opened(front, PAGE)
                assert "HTTP/1.1 503 Service Unavailable" in {answer_of(refused), answer_of(more)}
                refused.close()
                more.close()
            assert all(map(is_open, waiting))


LIMITED = """
import resource
from ge_openai.front import OpenAIFront
from ge_openai.options import FrontError, FrontOptions
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
front = OpenAIFront(FrontOptions(url="localhost:1", port=0))
print(front.url, flush=True)
front.run()
"""


def test_descriptors_do_not_run_out(opened):
    """However many connect, and the log stays empty."""
    command = [sys.executable, "-c", LIMITED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            front = SimpleNamespace(url=process.stdout.readline().decode().strip())
            assert answer_of(opened(front, PAGE)) == "HTTP/1.1 200 OK"
            for _ in range(200):
                opened(front, HEAD)
            assert answer_of(opened(front, PAGE)) == "HTTP/1.1 200 OK"
        finally:
            process.terminate()
        assert process.communicate()[1] == b""


def test_an_idle_front_hardly_wakes_up_and_ends_at_once(monkeypatch):
    """The library by itself looks ten times a second whether it is to end."""
    monkeypatch.setattr(front_module, "DATE_S", 600.0)
    ticks = []
    real = front_module._Server.on_tick

    async def tick(server, counter):
        ticks.append(counter)
        return await real(server, counter)

    monkeypatch.setattr(front_module._Server, "on_tick", tick)
    with OpenAIFront(FrontOptions(url="", host="127.0.0.1", port=0)):
        assert comes_true(lambda: len(ticks) == 1)
        time.sleep(0.5)
        assert len(ticks) == 1
        begin = time.monotonic()
    assert time.monotonic() - begin < 60


def test_a_signal_ends_a_front_that_is_idle():
    """As of `ge-backend openai`, which has the main thread."""
    code = (
        "from ge_openai import front; from ge_openai.options import FrontOptions\n"
        "front.DATE_S = 600.0\n"
        "one = front.OpenAIFront(FrontOptions(url='', host='127.0.0.1', port=0))\n"
        "print(one.url, flush=True)\n"
        "one.run()\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        host, _, port = process.stdout.readline().strip().removeprefix("http://").rpartition(":")
        with socket.create_connection((host, int(port)), timeout=30) as asking:
            asking.sendall(PAGE)
            assert asking.recv(4).startswith(b"HTTP")
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    finally:
        process.kill()
        process.communicate()
