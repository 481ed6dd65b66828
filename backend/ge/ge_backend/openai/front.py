"""The API's HTTP server: beside a server in this process, or alone."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import final

import uvicorn

from ge_backend.errors import ServerError
from ge_backend.openai.app import make_app
from ge_backend.openai.options import FrontOptions
from ge_backend.tritonserver.address import family_of, host_port, reached_at

__all__ = ["OpenAIFront"]

START_TIMEOUT_S = 10.0
POLL_S = 0.01
# As many as uvicorn asks for.
BACKLOG = 2048


@final
class OpenAIFront:
    """The API as a context manager, served by a thread of its own; or, by `run`, by this one.

    Its port is taken at once, so that one in use is told before anything is started; who connects
    before the API is served waits for it.

    Args:
        options: of the API.

    Attributes:
        url: what clients call `base_url`, without `/v1`.

    Raises:
        ServerError: the port is in use, or is none.
    """

    def __init__(self, options: FrontOptions) -> None:
        self._socket = _listener(options.host, options.port)
        address = host_port(reached_at(options.host), self._socket.getsockname()[1])
        self.url = f"http://{address}"
        self._server = uvicorn.Server(
            uvicorn.Config(
                make_app(options),
                # httptools leaves a request whose head offers HTTP/2, as that of a JDK's HttpClient
                # does, without its body; and each such offer would be a warning.
                http="h11",
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
                raise ServerError(f"the OpenAI API at {self.url} did not start; see above")
            time.sleep(POLL_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()


def _listener(host: str, port: int) -> socket.socket:
    listener = socket.socket(family_of(host))
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)  # until then another that listens could take the port
    except (OSError, OverflowError) as error:
        listener.close()
        raise ServerError(
            f"port {port} of {host} cannot be had for the OpenAI API ({error}); choose another"
        ) from error
    return listener
