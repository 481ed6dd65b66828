"""The API's HTTP server: beside a server in this process, or alone."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import threading
import time
from operator import itemgetter
from types import FrameType
from typing import final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ge_openai.address import family_of, host_port, reached_at
from ge_openai.app import make_app
from ge_openai.options import FrontError, FrontOptions

__all__ = ["OpenAIFront"]

START_TIMEOUT_S = 10.0
POLL_S = 0.01
DATE_S = 1.0
# As many as uvicorn asks for.
BACKLOG = 2048
# For a head, and between two parts of a body; what a client's way takes is far less.
SEND_TIMEOUT_S = 20.0
# Each may hold 64 KiB of a head that is not whole.
MAX_CONNECTIONS = 2048


@final
class OpenAIFront:
    """The API as a context manager, served by a thread of its own; or, by `run`, by this one.

    Its port is taken at once, so that one in use is told before anything is started; who connects
    before the API is served waits for it.

    Attributes:
        url: what clients call `base_url`, without `/v1`.

    Raises:
        FrontError: the port is in use, or is none.
    """

    def __init__(self, options: FrontOptions) -> None:
        # The rest is for files, and for what answers need.
        most = min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
        self._socket = _listener(options.host, options.port)
        address = host_port(reached_at(options.host), self._socket.getsockname()[1])
        self.url = f"http://{address}"
        self._server = _Server(
            uvicorn.Config(
                make_app(options),
                # httptools leaves a request whose head offers HTTP/2, as that of a JDK's HttpClient
                # does, without its body; and each such offer would be a warning.
                http=_Connection,
                limit_concurrency=most,
                backlog=most // 4,  # accepted at once, before the first of them can end another
                log_level="error",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=options.exit_timeout_s,
            )
        )
        self._thread = threading.Thread(target=self.run, name="openai", daemon=True)

    def run(self) -> None:
        """Serve until a signal, or leaving the context, ends it."""
        with contextlib.closing(self._socket):
            self._server.run(sockets=[self._socket])

    def __enter__(self) -> OpenAIFront:
        self._thread.start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise FrontError(f"the OpenAI API at {self.url} did not start; see above")
            time.sleep(POLL_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.end()
        self._thread.join()


class _Server(uvicorn.Server):  # type: ignore[misc] # seen without types
    """uvicorn's, which by itself looks ten times a second whether it is to end.

    This one is woken for that; once a second it writes the date of its answers.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending = asyncio.Event()

    async def main_loop(self) -> None:
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ending.wait(), DATE_S)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self.end()

    def end(self) -> None:
        """Serve no more; from any thread, and in a signal handler."""
        self.should_exit = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._ending.set)


class _Connection(H11Protocol):  # type: ignore[misc] # seen without types
    """A client's connection, which is closed where a request does not come whole.

    uvicorn by itself waits for ever, but for the first byte of a second request; and beyond its
    limit of connections it refuses requests, where silent connections could take all descriptors:
    here, from three quarters of that, the one that has the least time left ends for a new one.
    """

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > self.limit_concurrency * 3 // 4:
            silent = {each: each.end for each in self.connections if each is not self}
            ends = [(end.when(), each) for each, end in silent.items() if end is not None]
            if ends:
                min(ends, key=itemgetter(0))[1].transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        state = self.conn.their_state
        if state is not h11.IDLE:
            self._wait_no_more()
        if state is h11.SEND_BODY or (state is h11.IDLE and self._late is None):
            self._wait()

    def on_response_complete(self) -> None:
        super().on_response_complete()  # reads on in what came with the request
        if self.conn.their_state is h11.SEND_BODY and self._late is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    @property
    def end(self) -> asyncio.TimerHandle | None:
        """What ends it unless the client sends more; None while an answer is under way."""
        if self.transport.is_closing() or self.transport.get_write_buffer_size():
            return None
        return self._late or self.timeout_keep_alive_task

    def _wait(self) -> None:
        self._late = self.loop.call_later(SEND_TIMEOUT_S, self.transport.abort)

    def _wait_no_more(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


class _Listener(socket.socket):
    """Lets more connections wait than are accepted at once; asyncio has one number for both."""

    def listen(self, _: int = BACKLOG) -> None:
        super().listen(BACKLOG)


def _listener(host: str, port: int) -> socket.socket:
    listener = _Listener(family_of(host))
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()  # until then another that listens could take the port
    except (OSError, OverflowError) as error:
        listener.close()
        raise FrontError(
            f"port {port} of {host} cannot be had for the OpenAI API ({error}); choose another"
        ) from error
    return listener
