"""What a chat template does with the contents of messages: it takes texts, parts, or both.

Some templates print a content, some go through its parts, and some look which it is. One that gets
what it does not expect leaves the text out, or prints a list as Python writes it; so each is tried
with both. Source: vllm-project/vllm, vllm/entrypoints/chat_utils.py, which looks at the template's
syntax instead.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ge_openai.api_error import ApiError
from ge_openai.messages import Message, content_text, with_parts

__all__ = ["Contents", "check_nothing_is_lost", "contents_of", "up_to_end", "with_end"]

FIRST, SECOND = "aprobe", "bprobe"  # texts that no template has
# Where a message that the answer continues ends; not known before.
END = secrets.token_hex(16)
WORD = re.compile(r"\w+")
MAX_WORDS = 64  # of a text that are looked for


@dataclass(frozen=True, slots=True)
class Contents:
    """What a template shows of a content that is a text, and of one in parts."""

    text: bool
    parts: bool

    def form(self, message: Message) -> Message:
        """Return a message with its content as the template shows it.

        Parts that it does not take become lines of a text; a text is a part where only those are
        taken.
        """
        if self.parts and not (self.text and isinstance(message["content"], str)):
            return with_parts(message)
        return message | {"content": content_text(message)}


def contents_of(render: Callable[..., str]) -> Contents:
    """Return what a template shows, as told by what it writes; of one that refuses both, texts.

    Args:
        render: the template, to be called with messages and `add_generation_prompt`.
    """
    parts = [{"type": "text", "text": text} for text in (FIRST, SECOND)]
    as_text, as_parts = (_written(render, content) for content in (FIRST, parts))
    first, last = as_parts.find(FIRST), as_parts.find(SECOND)
    # A list that is printed as it is has the names of its parts' fields between the texts.
    shown = 0 <= first < last and "type" not in as_parts[first:last]
    return Contents(text=FIRST in as_text or not shown, parts=shown)


def _written(render: Callable[..., str], content: Any) -> str:
    try:
        messages = [{"role": "user", "content": content}]
        return str(render(messages=messages, documents=None, add_generation_prompt=True))
    except Exception:  # noqa: BLE001 - whatever a template's code may raise: it takes no such content
        return ""


def with_end(message: Message) -> Message:
    """Return a message whose end can be found in the prompt.

    Raises:
        ApiError: it has no text.
    """
    content = message["content"]
    if not content:
        raise ApiError(
            "continue_final_message needs a last message with a text",
            param="continue_final_message",
        )
    if isinstance(content, str):
        return message | {"content": content + END}
    last = content[-1] | {"text": content[-1]["text"] + END}
    return message | {"content": [*content[:-1], last]}


def up_to_end(prompt: str) -> str:
    """Return a prompt up to where its last message ends.

    Raises:
        ApiError: the template does not show it.
    """
    before, end, _ = prompt.rpartition(END)
    if not end:
        raise ApiError(
            "the model's chat template does not show the end of the last message, so it cannot be "
            "continued; leave out continue_final_message",
            param="continue_final_message",
        )
    return before.replace(END, "")


def check_nothing_is_lost(prompt: str, texts: Sequence[str]) -> None:
    """See that a prompt has something of each text.

    Raises:
        ApiError: not one word of a text is in it, so the template has left it out.
    """
    for text in texts:
        words = [word.group() for word in islice(WORD.finditer(text), MAX_WORDS)]
        if words and not any(word in prompt for word in words):
            raise ApiError(
                f"the model's chat template leaves out the message {text!r:.80}; give it another "
                "role, or put it into another message",
                param="messages",
            )
