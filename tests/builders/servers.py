"""How tests start the real server."""

from pathlib import Path

from ge_tools.tritonserver import ServerOptions

__all__ = ["QUICK_END", "server_options"]

# The host's end waits for the thread of its own metrics, which sleeps half of this, by default 2 s.
# Source: core r24.10 src/metrics.cc, StartPollingThread and ~Metrics.
QUICK_END = "--metrics-interval-ms=100"


def server_options(
    repository: Path, *, arguments: tuple[str, ...] = (), **fields: object
) -> ServerOptions:
    """Return the options of a server that has one repository and ends without needless waiting."""
    return ServerOptions(repositories=(repository,), arguments=(QUICK_END, *arguments), **fields)
