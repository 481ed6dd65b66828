"""The tokens of texts, by the tokenizer that the model that takes them is served with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ge_backend.engines.preprocess.text import TextTokenizer, open_tokenizer
from ge_backend.engines.preprocess.tokenizer import TokenizerOptions, read_options
from ge_backend.errors import CONTEXT_LENGTH, GeError, InvalidRequest
from ge_backend.model.config.model_folder import ModelFolder, read_document, read_folder
from ge_backend.model.files.model_file import stamp_of
from ge_backend.model.files.tokenizer_file import tokenizer_files
from ge_backend.serving.ensemble.dag import read_dag
from ge_openai.api_error import CONTEXT_LENGTH_EXCEEDED, ApiError
from ge_openai.folders import find_folder
from ge_openai.models import Array, ServedModel

__all__ = ["EmbeddingTokens", "ModelTokens"]

Input = str | tuple[int, ...]


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
        except InvalidRequest as error:
            raise ApiError(f"{where}: {error}", param="input") from error
        if self.most and count > self.most:
            raise ApiError(
                f"{CONTEXT_LENGTH} {self.most} tokens, special ones included, and {where} has "
                f"{count}: send a shorter text",
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
        made = (self._encode(text, special=special) for special in (False, True))
        if not any(tuple(map(int, each)) == ids for each in made):
            raise ApiError(
                f"{where} holds tokens that this model's tokenizer makes of no text; send the "
                "text itself, or tokens of this model",
                param="input",
            )
        return text

    def _encode(self, text: str, *, special: bool) -> Array:
        return self.tokenizer.encode(self.options.prepared(text), special=special)


class EmbeddingTokens:
    """Tokens by model, by the tokenizers in model repositories."""

    def __init__(self, repositories: Sequence[Path]) -> None:
        self._repositories = repositories
        self._read: dict[str, tuple[tuple[Any, ...], ModelTokens]] = {}

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
            found = _tokenizer_model(folder, model.input)
            file = found.directory / "tokenizer.json"
            return self._opened(model.name, file, found.document) if file.is_file() else None
        except (GeError, OSError):
            return None

    def _opened(self, model: str, file: Path, document: Mapping[str, Any]) -> ModelTokens:
        """Return what the file and the options say, read anew where either is another by now."""
        given = document.get("parameters", {})
        options = read_options([(key, each.get("string_value", "")) for key, each in given.items()])
        state = file, stamp_of(tokenizer_files(file)), options
        known = self._read.get(model)
        if known is None or known[0] != state:
            tokenizer = open_tokenizer(file)
            truncation = json.loads(file.read_text(encoding="utf-8")).get("truncation") or {}
            most = options.max_length or truncation.get("max_length", 0)
            tokens = ModelTokens(tokenizer=tokenizer, options=options, most=most)
            known = self._read[model] = state, tokens
        return known[1]


def _decoded(tokens: ModelTokens | None, ids: tuple[int, ...], where: str) -> str:
    if tokens is None:
        raise ApiError(
            f"{where} is tokens, and the model's tokenizer is not known here: send texts, or name "
            "the API its --model-repository",
            param="input",
        )
    return tokens.text(ids, where)


def _tokenizer_model(folder: Path, text: str) -> ModelFolder:
    """Return the model that takes the text: the ensemble's step, the fused one's, or itself."""
    document = read_document(folder)
    fused = document.get("parameters", {}).get("fuse")
    if fused:
        document = read_document(folder.parent / fused["string_value"])
    if "ensemble_scheduling" in document:
        takers = [step for step in read_dag(document).steps if text in step.inputs.values()]
        folder = folder.parent / takers[0].model if takers else folder
    return read_folder(folder)
