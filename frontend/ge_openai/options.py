"""What the API's HTTP server is started with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["TOKENIZER", "FrontError", "FrontOptions", "ReadTokenizer", "as_written", "read_keys"]

TOKENIZER = "tokenizer.json"

# Returns the text of a `tokenizer.json`, with what files beside it add to it; raises OSError or
# ValueError.
ReadTokenizer = Callable[[Path], str]


def as_written(file: Path) -> str:
    """Return the text of a `tokenizer.json` alone; see `ReadTokenizer`."""
    return file.read_text(encoding="utf-8")


class FrontError(Exception):
    """The API cannot be served as its options say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontOptions:
    """How to start the API.

    Attributes:
        url: host:port of the server's gRPC.
        metrics: URL of the server's metrics; "" where it has none.
        tokenizers: folders with the chat templates of models that do not say theirs, by name; they
            go before what is said.
        host: the address to listen on.
        port: 0 takes a free one.
        keys: a client has to send one of these; none: everybody may ask.
        max_body_bytes: of a request.
        max_prompt_bytes: of a text, a chat's after its template.
        exit_timeout_s: how long answers may still take at the end.
        read_tokenizer: reads the tokenizers in these folders.
    """

    url: str
    metrics: str = ""
    tokenizers: Mapping[str, Path] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 9000
    keys: tuple[str, ...] = ()
    max_body_bytes: int = 8 << 20
    max_prompt_bytes: int = 1 << 20
    exit_timeout_s: int = 10
    read_tokenizer: ReadTokenizer = as_written


def read_keys(file: Path | None) -> tuple[str, ...]:
    """Return the keys of a file, one a line; none where there is no file.

    Raises:
        FrontError: it cannot be read, or holds no key.
    """
    if file is None:
        return ()
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise FrontError(f"API keys cannot be read from {file}: {error}") from error
    keys = tuple(line.strip() for line in lines if line.strip())
    if not keys:
        raise FrontError(f"{file} holds no API key; expected one a line")
    return keys
