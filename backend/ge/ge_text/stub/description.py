"""What a model says of itself to clients that write its prompts: template, tokens, adapters.

A request whose `description` is `adapters` asks for their names alone.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from ge_backend.errors import ModelError
from ge_backend.host.description import description_response, identified
from ge_backend.host.room import Room
from ge_backend.model.files.tokenizer_file import TOKENIZER, read_tokenizer
from ge_text.models.adapter_folder import adapter_names
from ge_text.stub.requests import TextRequest

__all__ = ["Description"]

log = logging.getLogger(__name__)

ADAPTERS = "adapters"  # no id, which is hexadecimal
# Where transformers looks for a chat template and the tokens that it names.
FILES = ("tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
OTHERS = "additional_chat_templates/*.jinja"


class Description:
    """The description of a checkpoint as it was when it was loaded, but for its adapters.

    A JSON object: `id`, `files` of the checkpoint's folder by name, `added_tokens` as in a
    `tokenizer.json`, and names of `adapters` as of now.
    """

    def __init__(self, checkpoint: Path) -> None:
        self._checkpoint = checkpoint
        paths = [*(checkpoint / name for name in FILES), *sorted(checkpoint.glob(OTHERS))]
        files = {str(path.relative_to(checkpoint)): _text(path) for path in paths if path.is_file()}
        # Now, as other files may lie there when the first request asks; some 0.1 s if it is large.
        tokens = _added_tokens(checkpoint / TOKENIZER)
        self._fixed = identified({"files": files, "added_tokens": tokens})

    def answer(self, asked: TextRequest) -> Any | None:
        """Return the response that a request gets; None if it is to get its text.

        Raises:
            OutOfMemory: shared memory has no room for it.
        """
        said: dict[str, Any] = {ADAPTERS: adapter_names(self._checkpoint)}
        if asked.described != ADAPTERS:
            if asked.described == self._fixed["id"]:
                return None
            said = {**self._fixed, **said}
        return description_response(json.dumps(said).encode(), asked.wanted, Room())


def _text(path: Path) -> str:
    """Return a file's text; where it is none, a client finds no template in it."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        log.warning("%s cannot be read for clients that write prompts: %s", path, error)
        return ""


def _added_tokens(path: Path) -> list[Any]:
    """Return those of a tokenizer's file; of one that cannot be read, clients learn none."""
    if not path.is_file():
        return []
    try:
        return json.loads(read_tokenizer(path).text).get("added_tokens") or []
    except (ModelError, ValueError, RecursionError, AttributeError) as error:
        log.warning("%s cannot be read for clients that write prompts: %s", path, error)
        return []
