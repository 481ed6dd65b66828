"""What language models say of themselves over Triton's API: templates, tokens and adapters."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ge_openai.api_error import ApiError
from ge_openai.chat_template import ChatTemplate
from ge_openai.triton import TritonConnection

__all__ = ["DescribedModels", "Description", "read_description", "reading"]

_ADAPTERS = "adapters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a model says of itself.

    Attributes:
        id: another one with every checkpoint that says something else.
        files: texts of the checkpoint's files, by name.
        tokenizer: JSON with the tokens that were added to the vocabulary.
    """

    id: str
    files: Mapping[str, str]
    tokenizer: str


def read_description(text: str) -> Description:
    """Return what a model's output `description` says.

    Raises:
        ApiError: it is of another form.
    """
    with reading(text) as said:
        return Description(
            id=str(said["id"]),
            files=dict(said["files"]),
            tokenizer=json.dumps({"added_tokens": said["added_tokens"]}),
        )


class DescribedModels:
    """The chat templates of models that describe themselves, each asked for once.

    A model that was loaded anew says so to a request that goes by the old one: `forget` it then.

    Args:
        connection: returns the connection to the server, which begins with the first request.
    """

    def __init__(self, connection: Callable[[], TritonConnection]) -> None:
        self._triton = connection
        self._known: dict[str, tuple[str, ChatTemplate]] = {}

    async def template(self, model: str) -> tuple[ChatTemplate, str]:
        """Return a model's template, and the id of the description that has it.

        Raises:
            ApiError: it has none, or cannot be asked.
        """
        known = self._known.get(model)
        if known is None:
            said = read_description(await self._triton().description(model))
            template = await asyncio.to_thread(ChatTemplate, said.files, lambda: said.tokenizer)
            known = self._known[model] = said.id, template
        return known[1], known[0]

    def forget(self, model: str) -> None:
        """Ask a model again when its template is wanted next."""
        self._known.pop(model, None)

    async def adapters(self, model: str) -> tuple[str, ...]:
        """Return the names of a model's adapters, as of now; nothing else is asked for.

        Raises:
            ApiError: it cannot be asked.
        """
        with reading(await self._triton().description(model, _ADAPTERS)) as said:
            return tuple(said[_ADAPTERS])


@contextlib.contextmanager
def reading(text: str) -> Iterator[dict[str, Any]]:
    """Read JSON, and have what is not as it is read as an error of the API."""
    try:
        yield json.loads(text)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ApiError(f"the model says of itself what is not known here: {error}") from error
