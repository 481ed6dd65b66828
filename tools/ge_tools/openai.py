"""`ge-backend openai`: OpenAI's API in front of a server that runs already."""

from __future__ import annotations

import argparse
import contextlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from ge_backend.errors import ConfigError, DeviceUnavailable, ModelError
from ge_backend.model.config.sizes import parse_bytes
from ge_backend.model.files.tokenizer_file import read_tokenizer
from ge_openai.options import FrontOptions, read_keys

__all__ = ["add_front_options", "open_front", "read_front_options", "register"]

# A name or a number with its port, or what gRPC has a scheme for. Source: gRPC, doc/naming.md.
_GRPC = re.compile(r"[^/]+:\d+|(dns|ipv4|ipv6|unix|unix-abstract|vsock|xds):.+")
_HTTP = re.compile(r"https?://.+")

DESCRIPTION = """\
Serves language models and text embeddings of a running server by OpenAI's HTTP API, so that its
clients work unchanged: /v1/models, /v1/completions, /v1/chat/completions, /v1/embeddings, /health
and /metrics. `ge-backend serve --openai-port` does the same together with the server.
"""


def register(subparsers: Any) -> None:
    """Add the command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "openai", help="serve OpenAI's API in front of a running server", description=DESCRIPTION
    )
    parser.add_argument(
        "--url", default="localhost:8001", help="host:port of gRPC; default: %(default)s"
    )
    parser.add_argument(
        "--metrics-url",
        default="http://localhost:8002/metrics",
        metavar="URL",
        help="what /metrics shows; default: %(default)s",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="0.0.0.0 for all interfaces; default: %(default)s"
    )
    parser.add_argument(
        "--port",
        type=int,
        default=9000,
        metavar="PORT",
        help="0 takes a free one; default: %(default)s",
    )
    add_front_options(parser)
    parser.set_defaults(func=_run)


def _run(arguments: argparse.Namespace) -> int:
    if not _GRPC.fullmatch(arguments.url):
        raise ConfigError(f"--url is {arguments.url!r}; expected host:port of the server's gRPC")
    if arguments.metrics_url and not _HTTP.match(arguments.metrics_url):
        raise ConfigError(
            f"--metrics-url is {arguments.metrics_url!r}; expected a URL, such as "
            "http://localhost:8002/metrics"
        )
    options = read_front_options(
        arguments,
        url=arguments.url,
        metrics=arguments.metrics_url,
        port=arguments.port,
    )
    front = open_front(options)
    print(f"ge-backend: OpenAI's API at {front.url}/v1", flush=True)
    with contextlib.suppress(KeyboardInterrupt):  # what was under way has been answered by then
        front.run()
    return 0


def add_front_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say who may ask, and how much."""
    parser.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="clients of OpenAI's API have to send one of its lines; default: everybody may ask",
    )
    parser.add_argument(
        "--tokenizer",
        type=_named_folder,
        action="append",
        default=[],
        metavar="MODEL=DIR",
        help="a folder with the chat template of a model that does not say its own, and its "
        "tokenizer; may be repeated",
    )
    for name, size, what in (
        ("max-body", "8MiB", "of a request to OpenAI's API"),
        ("max-prompt", "1MiB", "of a text in it, of a chat after its template"),
    ):
        parser.add_argument(
            f"--{name}", default=size, metavar="SIZE", help=f"{what}; default: {size}"
        )


def read_front_options(arguments: argparse.Namespace, **given: Any) -> FrontOptions:
    """Return the options of the API; `given` are those that the command knows itself.

    Raises:
        ConfigError: a size is none, or 0.
        FrontError: the file of keys cannot be read.
    """
    return FrontOptions(
        host=arguments.host,
        keys=read_keys(arguments.api_key_file),
        tokenizers=dict(arguments.tokenizer),
        max_body_bytes=_limit(arguments.max_body, "--max-body"),
        max_prompt_bytes=_limit(arguments.max_prompt, "--max-prompt"),
        **given,
    )


def _named_folder(text: str) -> tuple[str, Path]:
    name, _, folder = text.partition("=")
    if not name or not Path(folder).is_dir() or not folder:
        raise argparse.ArgumentTypeError(f"{text!r} is no MODEL=DIR of a folder that is there")
    return name, Path(folder)


def _limit(text: str, name: str) -> int:
    limit = parse_bytes(text, name)
    if not limit:
        raise ConfigError(f"{name} is {text!r}, which no request keeps to; expected 1 byte or more")
    return limit


def open_front(options: FrontOptions) -> Any:
    """Return the API's server with its port taken, see `ge_openai.front.OpenAIFront`.

    It reads tokenizers as the backend does.

    Raises:
        DeviceUnavailable: a library is missing.
        FrontError: the port is in use.
    """
    try:
        from ge_openai.front import OpenAIFront
    except ImportError as error:
        raise DeviceUnavailable(
            "OpenAI's API is served with starlette, uvicorn, jinja2, tokenizers and tritonclient "
            f"({error}); pip install 'triton-ge-backend[openai]'"
        ) from error
    return OpenAIFront(replace(options, read_tokenizer=_written))


def _written(file: Path) -> str:
    """Return a tokenizer with the tokens that the files beside it name; see `ReadTokenizer`."""
    try:
        return read_tokenizer(file).text
    except ModelError as error:
        raise ValueError(str(error)) from error
