"""The tokens of texts, by the tokenizer that the model that takes them is served with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ge_openai.api_error import CONTEXT_LENGTH_EXCEEDED, TOO_LONG, ApiError
from ge_openai.folders import (
    TOKENIZER,
    find_folder,
    read_config,
    state_of,
    tokenizer_files,
    version_folder,
)
from ge_openai.models import ServedModel
from ge_openai.options import ReadTokenizer, as_written
from ge_openai.tokenizer import TextTokenizer

__all__ = ["EmbeddingTokens", "ModelTokens", "TokenizerOptions"]

Input = str | tuple[int, ...]
# This project's, in `config.pbtxt`: of others it is not known how they read a `tokenizer.json`.
_BACKEND = "ge"
_OPTION = "tokenizer."


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerOptions:
    """What a model's parameters `tokenizer.…` say beside the file.

    Attributes:
        max_length: tokens that a text may have, special ones included; 0 is what the file says.
        overflow: `truncate`, or `error` for a text that is longer.
        add_special_tokens: whether special tokens are put around a text.
        strip: whether white space around a text is left out.
        lower_case: whether a text is put in lower case first.
    """

    max_length: int = 0
    overflow: str = "truncate"
    add_special_tokens: bool = True
    strip: bool = False
    lower_case: bool = False

    def prepared(self, text: str) -> str:
        """Return what the tokenizer is given of a text."""
        text = text.strip() if self.strip else text
        return text.lower() if self.lower_case else text


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTokens:
    """Those of one model.

    Attributes:
        most: of a text, special ones included; 0 where the tokenizer has no limit.
    """

    tokenizer: TextTokenizer
    options: TokenizerOptions
    most: int

    def count(self, text: str, where: str) -> int:
        """Return how many tokens a text has.

        Raises:
            ApiError: more than the model takes, or the text cannot be told in tokens.
        """
        try:
            count = len(self._encode(text, special=self.options.add_special_tokens))
        except ValueError as error:
            raise ApiError(f"{where}: {error}", param="input") from error
        if self.most and count > self.most:
            raise ApiError(
                f"this model's {TOO_LONG} {self.most} tokens, special ones included, and {where} "
                f"has {count}: send a shorter text",
                param="input",
                code=CONTEXT_LENGTH_EXCEEDED,
            )
        return count

    def text(self, ids: tuple[int, ...], where: str) -> str:
        """Return the text that the tokenizer makes these very tokens of.

        Raises:
            ApiError: there is none.
        """
        text = self.tokenizer.decode(ids)
        made = [self._encode(text, special=special) for special in (False, True)]
        if ids not in made:
            raise ApiError(
                f"{where} holds tokens that this model's tokenizer makes of no text; send the "
                "text itself, or tokens of this model",
                param="input",
            )
        return text

    def _encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        return self.tokenizer.encode(self.options.prepared(text), special=special)


class EmbeddingTokens:
    """Tokens by model, by the tokenizers in model repositories."""

    def __init__(self, repositories: Sequence[Path], read: ReadTokenizer = as_written) -> None:
        self._repositories = repositories
        self._read = read
        self._known: dict[str, tuple[object, ModelTokens]] = {}

    def texts(self, model: ServedModel, inputs: Sequence[Input]) -> tuple[list[str], int]:
        """Return inputs as texts, and how many tokens they have; 0 if the tokenizer is not here.

        Raises:
            ApiError: an input is too long, or tokens that are no text.
        """
        tokens = self.of(model)
        texts = [
            given if isinstance(given, str) else _decoded(tokens, given, f"input[{place}]")
            for place, given in enumerate(inputs)
        ]
        if tokens is None:
            return texts, 0
        return texts, sum(tokens.count(text, f"input[{n}]") for n, text in enumerate(texts))

    def of(self, model: ServedModel) -> ModelTokens | None:
        """Return the tokenizer's as it is now; None where it is not here, or another backend's."""
        try:
            folder = find_folder(self._repositories, model.name)
            if folder is None:
                return None
            folder = _tokenizing(folder, model.input)
            config = read_config(folder)
            if config.backend != _BACKEND:
                return None
            checkpoint = version_folder(folder, config)
            if not (checkpoint / TOKENIZER).is_file():
                return None
            return self._opened(model.name, checkpoint, _options(config))
        except (OSError, ValueError):
            return None

    def _opened(self, model: str, checkpoint: Path, options: TokenizerOptions) -> ModelTokens:
        """Return what the files and the options say, read anew where either is another by now."""
        state = checkpoint, state_of(tokenizer_files(checkpoint)), options
        known = self._known.get(model)
        if known is None or known[0] != state:
            tokenizer = TextTokenizer(self._read(checkpoint / TOKENIZER))
            most = options.max_length or tokenizer.most
            tokens = ModelTokens(tokenizer=tokenizer, options=options, most=most)
            known = self._known[model] = state, tokens
        return known[1]


def _decoded(tokens: ModelTokens | None, ids: tuple[int, ...], where: str) -> str:
    if tokens is None:
        raise ApiError(
            f"{where} is tokens, and the model's tokenizer is not known here: send texts, or name "
            "the API its --model-repository",
            param="input",
        )
    return tokens.text(ids, where)


def _tokenizing(folder: Path, text: str) -> Path:
    """Return the folder of what takes the text: the ensemble's step, the fused one's, or itself."""
    config = read_config(folder)
    if "fuse" in config.parameters:
        config = read_config(folder.parent / config.parameters["fuse"].string_value)
    steps = config.ensemble_scheduling.step
    takers = [step.model_name for step in steps if text in step.input_map.values()]
    return folder.parent / takers[0] if takers else folder


def _options(config: Any) -> TokenizerOptions:
    """Return the options of a model that is served, which has none that are wrong."""
    given = {
        key.removeprefix(_OPTION): value.string_value.strip()
        for key, value in config.parameters.items()
        if key.startswith(_OPTION)
    }
    return TokenizerOptions(
        max_length=int(given.get("max_length", "0")),
        overflow=given.get("overflow", "truncate"),
        add_special_tokens=given.get("add_special_tokens") != "false",
        strip=given.get("strip") == "true",
        lower_case=given.get("lower_case") == "true",
    )
