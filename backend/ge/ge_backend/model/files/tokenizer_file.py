"""A `tokenizer.json` with the tokens that the files beside it name, as transformers opens it.

Every entry of `added_tokens_decoder` is added in the order of its number, which itself counts for
nothing: a token of the vocabulary keeps its number, another one gets the next free one. Tokens that
are named, such as `bos_token`, and special ones beside them follow, if nothing has them yet.
Source: transformers 5.23.0, tokenization_utils_base.py, `_from_pretrained`, and
tokenization_utils_tokenizers.py, `TokenizersBackend.__init__`; tokenizers 0.23,
added_vocabulary.rs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ge_backend.errors import ModelError
from ge_backend.model.files.json_file import read_json

__all__ = ["TOKENIZER", "TokenizerFile", "read_tokenizer", "tokenizer_files"]

TOKENIZER = "tokenizer.json"
SETTINGS, SPECIAL, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
MODEL = "config.json"
DECODER = "added_tokens_decoder"
EXTRA = ("extra_special_tokens", "additional_special_tokens")
# In this order; other names that end so follow.
NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
AROUND = ("bos_token", "eos_token")
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")

Token = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """What a tokenizer is made of.

    Attributes:
        text: JSON, in the form of `tokenizer.json`.
        warnings: what is otherwise than the files beside it say.
    """

    text: str
    warnings: tuple[str, ...] = ()


def tokenizer_files(path: Path) -> tuple[Path, ...]:
    """Return a `tokenizer.json` and those files beside it that it is opened with."""
    beside = (path.with_name(name) for name in (SETTINGS, SPECIAL, ADDED, MODEL))
    return (path, *(file for file in beside if file.is_file()))


def read_tokenizer(path: Path) -> TokenizerFile:
    """Return a `tokenizer.json` with the tokens that the files beside it name.

    None is added that the model could not take: beyond the `vocab_size` of `config.json`, or where
    there is none, beyond the tokenizer's own vocabulary. Such a token stays text like any other.

    Raises:
        ModelError: a file cannot be read, or names a token that is none.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from error
    wanted = _Wanted(path.parent)
    if not (wanted.entries or wanted.named):
        return TokenizerFile(text)
    try:
        described = json.loads(text)
        own = {token["content"]: token for token in described.get("added_tokens") or ()}
        vocabulary = _vocabulary(described)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return TokenizerFile(text)  # for the library to say what is wrong with it
    made = _Made(own, vocabulary, _most_tokens(path.parent))
    for number, token in wanted.entries:
        made.add(token, number, renews=True)
    for token in wanted.named:
        made.add(token)
    made.mark_special(wanted.names)
    template = json.dumps(described.get("post_processor"))
    made.warnings += [
        f"no text gets the token {content!r}: the template of this file decides, as with "
        "transformers 5, and not the switch in tokenizer_config.json"
        for content in wanted.around
        if json.dumps(content) not in template
    ]
    if made.tokens != own:
        described["added_tokens"] = sorted(made.tokens.values(), key=lambda token: int(token["id"]))
        text = json.dumps(described)
    return TokenizerFile(text, tuple(f"{path}: {each}" for each in made.warnings))


class _Wanted:
    """The tokens that the files of a folder name.

    Attributes:
        entries: tokens with their numbers, in their order.
        named: tokens that have a name, and special ones beside them.
        names: the contents of those with a name.
        around: the contents of those that are to stand around each text.
    """

    def __init__(self, folder: Path) -> None:
        said = _read(folder / SETTINGS)
        numbered: dict[int, Token] = {}
        if DECODER in said:
            entries = said[DECODER]
            if not isinstance(entries, Mapping) or not all(map(str.isdecimal, entries)):
                raise ModelError(
                    f"{folder / SETTINGS}: {DECODER} has to be an object of tokens by their "
                    f"numbers, got {entries!r:.80}"
                )
            where = f"{folder / SETTINGS}: {DECODER}"
            numbered = {int(key): _token(value, where) for key, value in entries.items()}
        else:
            said = {**said, **_read(folder / SPECIAL)}
        named = list(_named(said))
        extra = [
            _of(one, special=True) if isinstance(one, str) else _token(one, str(folder))
            for one in _extra(said)
        ]
        self.around = [
            token["content"]
            for name in AROUND
            if said.get(f"add_{name}") is True
            for token in _named({name: said.get(name)})
        ]
        self.names = frozenset(token["content"] for token in named)
        self.named = [*named, *extra]
        if DECODER not in said:
            special = {token["content"] for token in self.named}
            for content, number in _read(folder / ADDED).items():
                if type(number) is int:
                    numbered[number] = _of(content, special=content in special)
        self.entries = sorted(numbered.items())


class _Made:
    """The added tokens of a tokenizer by their contents, as more of them come."""

    def __init__(
        self, own: Mapping[str, Token], vocabulary: Mapping[str, int], most: int | None
    ) -> None:
        self.tokens = dict(own)
        self.warnings: list[str] = []
        self._vocabulary = vocabulary
        self._most = self._next() if most is None else most

    def add(self, token: Token, number: int | None = None, *, renews: bool = False) -> None:
        """Add a token; one that is there keeps its number, and its flags unless they are renewed.

        One that is special stays so. `number` is what it is said to have.
        """
        content = token["content"]
        if not content or (content in self.tokens and not renews):
            return
        special = token["special"]
        if content in self.tokens:
            found = int(self.tokens[content]["id"])
            special |= self.tokens[content]["special"] is True
        else:
            found = self._vocabulary.get(content, self._next())
            if found >= self._most and content not in self._vocabulary:
                self.warnings.append(
                    f"the token {content!r} would have number {found} and is left out, as the "
                    f"model's tokens are 0 to {self._most - 1}: in a text it is letters"
                )
                return
        if number not in (None, found):
            self.warnings.append(
                f"the token {content!r} has number {found} and not {number}, as with transformers"
            )
        self.tokens[content] = {"id": found, **token, "special": special}

    def mark_special(self, contents: frozenset[str]) -> None:
        """See that tokens with a name are special."""
        for content in contents & self.tokens.keys():
            self.tokens[content] = {**self.tokens[content], "special": True}

    def _next(self) -> int:
        """Return the next free number."""
        added = (int(token["id"]) + 1 for token in self.tokens.values())
        return max((len(self._vocabulary), *added))


def _named(said: Mapping[str, Any]) -> Iterator[Token]:
    """Yield the tokens that have a name."""
    others = {name: value for name, value in said.items() if name.endswith("_token")}
    more = said.get(EXTRA[0])
    others |= more if isinstance(more, Mapping) else {}
    for value in {**{name: others.get(name) for name in NAMES}, **others}.values():
        if isinstance(value, str) and value:
            yield _of(value, special=True)
        elif isinstance(value, Mapping) and isinstance(value.get("content"), str):
            yield {**_token(value, ""), "special": True}


def _extra(said: Mapping[str, Any]) -> list[Any]:
    return next((said[name] for name in EXTRA if isinstance(said.get(name), list)), [])


def _token(given: Any, where: str) -> Token:
    if not isinstance(given, Mapping) or not isinstance(given.get("content"), str):
        raise ModelError(f"{where} has {given!r:.80}, expected a token with its content")
    special = given.get("special") is True
    flags = {name: given[name] is True for name in FLAGS if name in given}
    return {**_of(given["content"], special=special), **flags}


def _of(content: str, *, special: bool) -> Token:
    """Return a token as the library has it if nothing more is said."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
    return {"content": content, **flags, "normalized": not special, "special": special}


def _vocabulary(described: Mapping[str, Any]) -> dict[str, int]:
    """Return numbers by pieces, without those of tokens that were added."""
    vocabulary = described["model"]["vocab"]
    if isinstance(vocabulary, dict):
        return vocabulary
    return {piece: number for number, (piece, *_) in enumerate(vocabulary)}


def _most_tokens(folder: Path) -> int | None:
    """Return how many tokens the model of a folder has; None where that is not said."""
    found = _read(folder / MODEL).get("vocab_size")
    return found if type(found) is int and found > 0 else None


def _read(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
