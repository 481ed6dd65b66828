"""Hugging Face tokenizers: texts in, token ids and masks out, with special tokens as the file says.

The model file is `tokenizer.json`, as the library `tokenizers` and `transformers` write it.

    text            BYTES [batch, 1]         UTF-8
    text_pair       likewise                 with the option `pairs`: what stands behind the text
    input_ids       INT64 [batch, sequence]  as long as the longest text; `lengths` tells the others
    attention_mask  likewise                 1 for tokens, 0 for padding
    token_type_ids  likewise                 1 for the second text of a pair, where the file says so

Options, from config.pbtxt: see `read_options`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from ge_backend.device.arrays import bytes_columns
from ge_backend.device.base import ROW_ERRORS, Graph, GraphSource
from ge_backend.device.failures import failure
from ge_backend.device.machine.threads import Cores
from ge_backend.engines.preprocess.load import load_tokenizer
from ge_backend.errors import ConfigError
from ge_backend.tensors import Array, Signature, TensorSpec, data_type

__all__ = ["TokenizerGraph", "TokenizerOptions", "cut_pair", "read_options", "shares"]

PREFIX = "tokenizer."
TRUTH = {"true": True, "false": False}
# What the field calls the token that fills, where the file sets no padding up.
PAD_TOKENS = ("[PAD]", "<pad>", "<|pad|>", "<|padding|>")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerOptions:
    """What may be said beside the file.

    Attributes:
        max_length: tokens that a text may have, or a pair, special ones included; 0 is what the
            file says.
        overflow: `truncate`, or `error` for a text that is longer.
        pairs: whether a second text comes with each.
        add_special_tokens: whether the file's special tokens are put around a text.
        strip: whether white space around a text is left out.
        lower_case: whether a text is put in lower case first, whatever the file says.
        data_type: of the outputs, `INT64` or `INT32`.
    """

    max_length: int = 0
    overflow: str = "truncate"
    pairs: bool = False
    add_special_tokens: bool = True
    strip: bool = False
    lower_case: bool = False
    data_type: str = "INT64"

    def prepared(self, text: str) -> str:
        """Return what the tokenizer is given of a text."""
        text = text.strip() if self.strip else text
        return text.lower() if self.lower_case else text


def read_options(pairs: Sequence[tuple[str, str]]) -> TokenizerOptions:
    """Return the options among these, which are called `tokenizer.<option>`.

    Raises:
        ConfigError: one is unknown, or its value cannot be used.
    """
    texts = {key[len(PREFIX) :]: text.strip() for key, text in pairs if key.startswith(PREFIX)}
    known = TokenizerOptions.__dataclass_fields__
    for name in texts:
        if name not in known:
            names = ", ".join(PREFIX + known_name for known_name in known)
            raise ConfigError(f"parameter '{PREFIX}{name}' is unknown; known are {names}")
    length = texts.get("max_length", "0")
    if not length.isdecimal():
        raise ConfigError(f"parameter '{PREFIX}max_length' is {length!r}; expected a whole number")

    def switch(name: str) -> bool:
        default = str(known[name].default).lower()
        return TRUTH[_one_of(name, texts.get(name, default), tuple(TRUTH))]

    return TokenizerOptions(
        max_length=int(length),
        overflow=_one_of("overflow", texts.get("overflow", "truncate"), ("truncate", "error")),
        pairs=switch("pairs"),
        add_special_tokens=switch("add_special_tokens"),
        strip=switch("strip"),
        lower_case=switch("lower_case"),
        data_type=_one_of("data_type", texts.get("data_type", "INT64"), ("INT64", "INT32")),
    )


class TokenizerGraph(Graph):
    """One tokenizer. The library releases the GIL and spreads a batch over its own threads.

    Where a run has one thread, texts are encoded one by one: a batch's would wait for the library's
    threads to wake on cores that others keep busy.
    Any shape runs, and needs none of the device's memory.
    A text that is not UTF-8, or longer than `overflow` allows, is refused alone (`ROW_ERRORS`).
    """

    def __init__(self, source: GraphSource, cores: Cores) -> None:
        del cores  # the library counts them itself, or reads RAYON_NUM_THREADS
        self._one_by_one = source.threads == 1
        self._path = source.path
        self._options = read_options(source.options)
        self._tokenizer = load_tokenizer(Path(source.path))
        self._left = (self._tokenizer.truncation or {}).get("direction") == "left"
        self._max_length = _set_up_truncation(self._tokenizer, self._options, source.path)
        pad_id, pad_type = _padding(self._tokenizer)
        self._fills = {"input_ids": pad_id, "attention_mask": 0, "token_type_ids": pad_type}
        self.signature = Signature(
            inputs=tuple(
                TensorSpec(name=name, dtype=data_type("BYTES"), dims=(-1, 1), axes=("batch", ""))
                for name in ("text", "text_pair")[: 1 + self._options.pairs]
            ),
            outputs=tuple(
                TensorSpec(
                    name=name,
                    dtype=data_type(self._options.data_type),
                    dims=(-1, -1),
                    axes=("batch", "sequence"),
                    fill=fill,
                )
                for name, fill in self._fills.items()
            ),
            axis_limits={"sequence": self._max_length} if self._max_length else {},
            lengths={"sequence": "attention_mask"},
        )

    def run(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array], *, exclusive: bool
    ) -> dict[str, Array]:
        """Run once; see `Graph.run`."""
        del outputs, exclusive  # no caller could predict the shapes
        columns = bytes_columns(self._path, self.signature, inputs)
        texts, reasons = _decoded(columns[0])
        given: list[Any] = [self._options.prepared(text) for text in texts]
        if self._options.pairs:
            seconds, further = _decoded(columns[1])
            second = (self._options.prepared(text) for text in seconds)
            given = list(zip(given, second, strict=True))
            reasons = [one or other for one, other in zip(reasons, further, strict=True)]
        try:
            encodings = self._encoded(given)
        except Exception as error:  # the library raises nothing more particular
            raise failure(error, self._path) from error
        if self._options.overflow == "error":
            self._refuse_longer(encodings, reasons)
        if self._options.pairs:
            rows = [cut_pair(each, self._max_length, left=self._left) for each in encodings]
        else:
            rows = [(each.ids, each.type_ids) for each in encodings]
        results = self._results([ids for ids, _ in rows], [types for _, types in rows])
        if any(reasons):
            results[ROW_ERRORS] = np.array([each.encode() for each in reasons], object)
        return results

    def close(self) -> None:
        """Free the vocabulary."""
        del self._tokenizer

    def _encoded(self, given: list[Any]) -> list[Any]:
        special = self._options.add_special_tokens
        encode = self._tokenizer.encode_batch_fast
        parts = [[text] for text in given] if self._one_by_one else [given]
        return [each for part in parts for each in encode(part, add_special_tokens=special)]

    def _results(self, ids: list[list[int]], types: list[list[int]]) -> dict[str, Array]:
        """Return the outputs, padded on the right to the longest text.

        The library pads, too, but every token that it fills with is made a number of Python's.
        """
        lengths = [len(row) for row in ids]
        dtype = data_type(self._options.data_type).numpy
        results = {
            name: np.full((len(ids), max(lengths)), fill, dtype)
            for name, fill in self._fills.items()
        }
        for row, length in enumerate(lengths):
            results["input_ids"][row, :length] = ids[row]
            results["attention_mask"][row, :length] = 1
            results["token_type_ids"][row, :length] = types[row]
        return results

    def _refuse_longer(self, encodings: Sequence[Any], reasons: list[str]) -> None:
        for row, encoding in enumerate(encodings):
            if encoding.overflowing or len(encoding) > self._max_length:
                reasons[row] = (
                    f"the text has more than {self._max_length} tokens, special ones included; "
                    "send a shorter one"
                )


def _set_up_truncation(tokenizer: Tokenizer, options: TokenizerOptions, path: str) -> int:
    """Set the most tokens of a text; return it, 0 where there is no limit.

    What is cut off is not returned, so a stride of the file has no effect. Nor has its strategy: it
    is what texts were cut by last before it was saved, and may fail for those of another kind. The
    library does not cut at all where only special tokens would be left (seen with 0.23), so that
    is refused.
    """
    given = tokenizer.truncation or {}
    most: int = options.max_length or given.get("max_length", 0)
    if not most:
        if options.overflow == "error":
            raise ConfigError(
                f"parameter '{PREFIX}overflow' is 'error', but neither {path} nor "
                f"'{PREFIX}max_length' says how long a text may be; set that"
            )
        return 0
    special = tokenizer.num_special_tokens_to_add(is_pair=options.pairs)
    least = special + 1 if options.add_special_tokens else 1
    if most < least:
        raise ConfigError(
            f"{path}: a text of at most {most} tokens has no room for any beside the {special} "
            f"special ones; set '{PREFIX}max_length' to {least} or more"
        )
    if options.pairs:
        tokenizer.no_truncation()  # see `cut_pair`
    else:
        tokenizer.enable_truncation(most, direction=given.get("direction", "right"))
    return most


def _padding(tokenizer: Tokenizer) -> tuple[int, int]:
    """Let the library pad nothing; return the id and the type that padding consists of.

    A length in the file is not taken: lengths stay unequal, and who runs the tokens pads them.
    """
    given = tokenizer.padding
    tokenizer.no_padding()
    if given is not None:
        return int(given["pad_id"]), int(given.get("pad_type_id", 0))
    known = [tokenizer.token_to_id(token) for token in PAD_TOKENS]
    return next((number for number in known if number is not None), 0), 0


def _decoded(rows: Array) -> tuple[list[str], list[str]]:
    """Return the texts, and per row why it is refused; "" is in place of a text that is."""
    texts: list[str] = []
    reasons: list[str] = []
    for row in rows:
        try:
            texts.append(row.decode())
            reasons.append("")
        except UnicodeDecodeError as error:
            texts.append("")
            reasons.append(f"the text is not UTF-8: {error}")
    return texts, reasons


def _one_of(name: str, text: str, choices: tuple[str, ...]) -> str:
    if text not in choices:
        raise ConfigError(
            f"parameter '{PREFIX}{name}' is {text!r}; expected one of {', '.join(choices)}"
        )
    return text


def cut_pair(encoding: Any, most: int, *, left: bool) -> tuple[list[int], list[int]]:
    """Return ids and types of a pair, at most `most`; special tokens stay.

    The library keeps what it cuts off, and of a pair each part of the one text beside each of the
    other: two texts of 8,000 words and 128 tokens made 89,396 parts in six seconds (seen with
    0.23). So it cuts no pairs; this does, by its rule, in time that grows with the texts alone.

    Args:
        encoding: of the library, uncut.
        most: tokens, special ones included; 0 is no limit.
        left: whether a text loses its first tokens, not its last ones.
    """
    ids, types = encoding.ids, encoding.type_ids
    if not most or len(ids) <= most:
        return ids, types
    sides = encoding.sequence_ids  # None of a special token
    counts = sides.count(0), sides.count(1)
    kept = shares(*counts, most - sides.count(None))
    first = [count - share if left else 0 for count, share in zip(counts, kept, strict=True)]
    seen = [0, 0]
    places = []
    for place, side in enumerate(sides):
        if side is not None:
            at = seen[side] - first[side]
            seen[side] += 1
            if not 0 <= at < kept[side]:
                continue
        places.append(place)
    return [ids[place] for place in places], [types[place] for place in places]


def shares(one: int, other: int, most: int) -> tuple[int, int]:
    """Return how many tokens of each text stay where both have room for `most` together.

    The longer one is cut first, and both to halves where that is not enough; the longer one has
    the odd token, the second where both are as long. Source: huggingface/tokenizers,
    src/utils/truncation.rs, LongestFirst.
    """
    if one + other <= most:
        return one, other
    less, more = most // 2, most - most // 2
    shorter = min(one, other)
    if shorter < less:
        less, more = shorter, most - shorter
    return (more, less) if one > other else (less, more)
