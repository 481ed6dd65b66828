"""What the examples share: the options that say where a server is, and trouble told in one line."""

from __future__ import annotations

import argparse
import http.client
import importlib
import sys
from collections.abc import Callable, Sequence

from tritonclient.utils import InferenceServerException

__all__ = ["parser", "run"]

PORTS = {"grpc": 8001, "http": 8000, "openai": 9000}
# What gRPC says where nothing listens, or nothing that speaks it.
UNREACHABLE = ("failed to connect", "errors resolving", "connections to all backends failing")


def parser(
    about: str | None, *, protocols: Sequence[str] = ("grpc", "http")
) -> argparse.ArgumentParser:
    """Return a parser of `--url` and `--protocol`; `about` is the example's docstring."""
    made = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--protocol", choices=protocols, default=protocols[0])
    made.add_argument("--url", help="host:port (default: localhost, the protocol's usual port)")
    return made


def run(main: Callable[[argparse.Namespace], None], options: argparse.ArgumentParser) -> None:
    """Run an example; a server that is not as it needs is one line on stderr, and exit code 1.

    Args:
        main: gets the options, and as `triton` the client's module for Triton's protocols.
        options: what reads the command line.
    """
    parsed = options.parse_args()
    parsed.url = (parsed.url or f"localhost:{PORTS[parsed.protocol]}").removeprefix("http://")
    if parsed.protocol != "openai":  # which needs no client of Triton's
        parsed.triton = importlib.import_module(f"tritonclient.{parsed.protocol}")
    try:
        main(parsed)
    except InferenceServerException as error:
        sys.exit(_advice(str(error), parsed))
    except (FileNotFoundError, BrokenPipeError) as error:  # an image that is not there, `| head`
        sys.exit(str(error))
    except (OSError, http.client.HTTPException) as error:
        sys.exit(_unreachable(f"{error}", parsed))


def _advice(message: str, options: argparse.Namespace) -> str:
    """Return what the server says, and what to do about it."""
    if any(sign in message for sign in UNREACHABLE):
        return _unreachable(message, options)
    if "unknown model" in message or "is not ready" in message:
        return f"{message}; the examples need the models that `make serve` serves: see --url"
    if "load / unload is not allowed" in message or "is restricted" in message:
        wanted = "--model-control-mode=explicit --load-model=*"
        return f"{message}; start the server as `make serve` does: {wanted}"
    return message


def _unreachable(message: str, options: argparse.Namespace) -> str:
    return (
        f"no server answers {options.protocol} at {options.url} ({message}); start one with "
        "`make serve`, or say where it is: --url HOST:PORT, and --protocol for that port"
    )
