"""The chat template of a checkpoint: messages in, the prompt that the model was trained on out.

Templates are code that comes with a checkpoint; they run in jinja2's sandbox, with the names and
extensions that transformers gives them. Source: transformers 5.23.0,
`utils/chat_template_utils.py`, `_compile_jinja_template`.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from itertools import takewhile
from pathlib import PurePosixPath
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

from ge_openai.api_error import ApiError
from ge_openai.call_forms import CallForm, form_of
from ge_openai.contents import (
    check_nothing_is_lost,
    contents_of,
    up_to_end,
    with_end,
)
from ge_openai.messages import (
    Message,
    content_text,
    with_calls_as_text,
    with_nine_letter_ids,
    with_objects_as_arguments,
)
from ge_openai.rendering import Rendering

__all__ = ["CONFIG", "OTHERS", "SPECIAL", "TEMPLATE", "AddedTokens", "ChatTemplate"]

CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
OTHERS = "additional_chat_templates"
SPECIAL = "special_tokens_map.json"
DECODER = "added_tokens_decoder"
OWN_NAMES = ("extra_special_tokens", "model_specific_special_tokens")
DEVELOPER = "developer"  # OpenAI's later name of the role `system`
ASSISTANT = "assistant"  # templates leave out what it thought
PLAIN = Rendering()
# What reading JSON of others may raise.
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)
# In templates of Mistral's, which refuse ids of tool calls that are of another length.
NINE_LETTERS = re.compile(r"length\s*!=\s*9|length 9")


@dataclass(frozen=True, slots=True)
class AddedTokens:
    """Tokens that were added to a vocabulary: number by text, and which are left out of texts."""

    ids: Mapping[str, int]
    special: frozenset[str]


class ChatTemplate:
    """The template of a checkpoint, with a variant for tools where it has one.

    Args:
        files: texts of its files by their names: `tokenizer_config.json`, and `chat_template.jinja`
            where the template is a file of its own; variants are `additional_chat_templates/…`.
        tokenizer: returns the text of a `tokenizer.json`, "" where there is none.

    What a content is to the template, a text or parts, is told by what it writes of both when it is
    read.

    Attributes:
        calls: how its model writes calls of tools; None where that is not known.

    Raises:
        ApiError: there is no template, or none that can be read.
    """

    def __init__(self, files: Mapping[str, str], tokenizer: Callable[[], str] = str) -> None:
        self._read = tokenizer
        self._names: dict[str, str] = {}
        self.calls: CallForm | None = None
        try:
            config = _json_of(files, CONFIG)
            texts = _templates(files, config)
            whole = "".join(texts.values())
            self.calls = form_of(whole)
            self._knows_developers = DEVELOPER in whole
            self._nine_letters = bool(NINE_LETTERS.search(whole))
            environment = _environment()
            self._templates = {name: environment.from_string(text) for name, text in texts.items()}
            self._reads_documents = "documents" in whole
            self._names = _special_tokens(config, _json_of(files, SPECIAL))
            self._contents = {
                name: contents_of(partial(template.render, **self._names, tools=None))
                for name, template in self._templates.items()
            }
        except (ValueError, KeyError, TypeError, jinja2.TemplateError) as error:
            raise ApiError(f"the model's chat template cannot be read: {error}") from error
        if not self._templates:
            raise ApiError(
                "the model's checkpoint has no chat template: neither chat_template.jinja nor "
                "chat_template in tokenizer_config.json; use /v1/completions",
                code="no_chat_template",
            )

    @cached_property
    def tokens(self) -> AddedTokens:
        """Tokens that were added to the vocabulary; none where no tokenizer says any.

        Raises:
            ApiError: the tokenizer's file cannot be read.
        """
        try:
            found = self._tokenizer.get("added_tokens") or ()
            return AddedTokens(
                ids={one["content"]: one["id"] for one in found},
                special=frozenset(one["content"] for one in found if one.get("special")),
            )
        except _UNREADABLE as error:
            raise _no_tokenizer(error) from error

    @cached_property
    def begins(self) -> str:
        """The special tokens that the tokenizer puts before a text by itself.

        Raises:
            ApiError: as above.
        """
        try:
            return _put_before(self._tokenizer.get("post_processor"))
        except _UNREADABLE as error:
            raise _no_tokenizer(error) from error

    @cached_property
    def _tokenizer(self) -> Any:
        return json.loads(self._read() or "{}")

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        asked: Rendering = PLAIN,
    ) -> str:
        """Return the prompt that asks for the next message.

        It holds all special tokens that there are to be: as in transformers' `apply_chat_template`,
        it is told in tokens without those that the tokenizer puts around other texts. Messages of a
        developer are the system's where the template says nothing of developers. Arguments of calls
        are JSON's values, or texts where the template joins them to one, as DeepSeek's does; or
        always objects where it goes through their names.

        Raises:
            ApiError: the template refuses the messages, or leaves out a text of a message that is
                not the assistant's.
        """
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        name = name if name in self._templates else next(iter(self._templates))
        if asked.documents and not self._reads_documents:
            raise ApiError(
                "the model's chat template has no place for documents; put them into a message",
                param="documents",
            )
        if not self._knows_developers:
            messages = [_from_the_system(message) for message in messages]
        written = partial(
            self._templates[name].render,
            **{
                **self._names,
                **asked.names,
                "tools": list(tools) or None,
                "documents": list(asked.documents) or None,
                "add_generation_prompt": asked.answers,
            },
        )
        if self._nine_letters:
            messages = list(map(with_nine_letter_ids, messages))
        texts = [content_text(each) for each in messages if each["role"] != ASSISTANT]
        messages = list(map(self._contents[name].form, messages))
        if asked.goes_on:
            messages = [*messages[:-1], with_end(messages[-1])]
        try:
            prompt = _first_that_works(written, messages)
        except Exception as error:  # whatever a template's code may raise: it is the request's
            raise ApiError(
                f"the model's chat template refuses the messages: {error}", param="messages"
            ) from error
        if asked.goes_on:
            prompt = up_to_end(prompt)
        check_nothing_is_lost(prompt, texts)
        return prompt


def _first_that_works(written: Callable[..., Any], messages: Sequence[Message]) -> str:
    """Return a prompt with the first form of the calls in a chat that its template can print."""
    try:
        return str(written(messages=list(messages)))
    except (TypeError, jinja2.UndefinedError):
        if not any("tool_calls" in message for message in messages):
            raise
        for change in (with_calls_as_text, with_objects_as_arguments):
            with contextlib.suppress(TypeError, jinja2.UndefinedError):
                return str(written(messages=list(map(change, messages))))
        raise


def _from_the_system(message: Message) -> Message:
    return message | {"role": "system"} if message["role"] == DEVELOPER else message


def _put_before(processor: Any) -> str:
    """Return what a `post_processor` of a tokenizer's file writes before a text."""
    if not processor:
        return ""
    if processor["type"] == "Sequence":
        return "".join(map(_put_before, processor["processors"]))
    parts = processor["single"] if processor["type"] == "TemplateProcessing" else ()
    before = takewhile(lambda part: "SpecialToken" in part, parts)
    return "".join(part["SpecialToken"]["id"] for part in before)


def _no_tokenizer(error: Exception) -> ApiError:
    return ApiError(f"the model's tokenizer.json cannot be read: {error}")


class _Generation(jinja2.ext.Extension):  # type: ignore[misc] # jinja2 is not installed everywhere
    """`{% generation %}` marks what a model is trained to write; here it is nothing special."""

    tags = frozenset({"generation"})

    def parse(self, parser: Any) -> Any:
        """Return what stands between the tags."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def _environment() -> Any:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - the arguments are transformers'
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002 - as above
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _json_of(files: Mapping[str, str], name: str) -> dict[str, Any]:
    """Return a file's JSON object; empty where there is no file."""
    read = json.loads(files[name]) if name in files else {}
    if not isinstance(read, dict):
        raise ApiError(f"the model's {name} holds no JSON object")
    return read


def _special_tokens(config: Mapping[str, Any], beside: Mapping[str, Any]) -> dict[str, str]:
    """Return the special tokens that have a name, such as `bos_token`.

    A `special_tokens_map.json` goes before the configuration, or counts for nothing where that has
    its own `added_tokens_decoder`. Names of a model's own, as `image_token`, may stand together.
    Source: transformers 5.23.0, tokenization_utils_base.py, `_from_pretrained`.
    """
    said = {**config, **({} if DECODER in config else beside)}
    for key in OWN_NAMES:
        said |= said[key] if isinstance(said.get(key), Mapping) else {}
    return {
        key: value.get("content", "") if isinstance(value, Mapping) else value
        for key, value in said.items()
        if key.endswith("_token") and isinstance(value, (str, Mapping))
    }


def _templates(files: Mapping[str, str], config: Mapping[str, Any]) -> dict[str, str]:
    """Return the templates by name; a file goes before the configuration."""
    found = files.get(TEMPLATE, config.get("chat_template"))
    if isinstance(found, str):
        found = [{"name": "default", "template": found}]
    paths = {PurePosixPath(name): text for name, text in files.items()}
    others = {path.stem: text for path, text in paths.items() if path.parent.name == OTHERS}
    return {one["name"]: one["template"] for one in found or ()} | others
