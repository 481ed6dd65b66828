"""A Hugging Face encoder that never computes padding: rows lie end to end, whatever their lengths.

The modules are transformers' own. Everything in them but attention looks at one token at a time, so
the tokens of all rows stand behind one another in one row, and an attention function of the engine
that computes the layers keeps the rows apart.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch

from ge_backend.engines.torch.encoder_head import Head
from ge_backend.engines.torch.packed_rows import PackedRows, pack_rows
from ge_backend.engines.torch.pretrained import load_encoder, refusing, token_types
from ge_backend.errors import Unsupported
from ge_backend.model.files.encoder_folder import EncoderFolder
from ge_backend.tensors import Array

__all__ = ["TOLERANCE", "EncoderEngine", "Layers", "PackedEncoder"]

# Texts that are compared at load with what the model computes for each alone; none is longer than
# the checkpoint takes. The longest sees beyond a usual local window.
CHECK_LENGTHS = 5, 1, 5, 160
# Largest difference that rounding makes, as a share of the largest number.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}
# Largest change of a row by what other rows hold, likewise: at the same sizes nothing is rounded
# otherwise, and so nothing changes, unless an engine adds up in no fixed order.
TOUCHED = 1e-4

MIN_LENGTH = 1e-12  # what a vector's length counts as, at least; as in torch

# Computes the hidden states of rows end to end, FP32 `[T, W]` or longer; threads may share it.
Layers: TypeAlias = Callable[[PackedRows], Array]


class EncoderEngine(Protocol):
    """What computes the layers of one encoder."""

    def layers(self, threads: int, at_once: int) -> Layers:
        """Return the layers for runs of `threads` threads each, `at_once` of them at once."""


class PackedEncoder:
    """An encoder's checkpoint: its modules, and what comes before and behind its layers.

    Args:
        folder: what the checkpoint is to become.
        dtype: of weights and computing; what comes out is FP32.

    Attributes:
        dtype: likewise.
        base: the modules, without a classifier; an engine may change their layers, or free them.
        tolerance: largest difference from each text alone, as a share of the largest number; an
            engine that rounds more has a larger one.
        vocabulary: token ids are below.
        token_types: how many `token_type_ids` tell apart; 1 where the modules take none.
        max_length: the most tokens of a text.
        example: texts that are compared with what the modules computed for each alone.
        width: of the output's last axis.
        reduction: what of a row's hidden states counts: the `first`, the `last`, their `mean` or
            `max`; "" is all.

    Raises:
        ModelError: the weights are not those of the architecture, or only pickles are there.
        Unsupported: transformers has no such encoder.
    """

    def __init__(self, folder: EncoderFolder, dtype: torch.dtype) -> None:
        self._folder = folder
        self.dtype, self.tolerance = dtype, TOLERANCE[dtype]
        with self.refusing():
            whole = load_encoder(folder, dtype)
            base = whole.base_model if folder.classifies else whole
            base.config.use_cache = False  # a decoder's, of keys that nothing would ask for
            self.vocabulary = int(base.config.vocab_size)
            self.token_types = token_types(base)
        self.base, self._name = base, type(base).__name__
        # RoBERTa and its kin count positions from behind this one, which padding has.
        self._padding = padding = getattr(getattr(base, "embeddings", None), "padding_idx", None)
        self.max_length = folder.max_length
        allowed = torch.arange(self.vocabulary)
        allowed = allowed[allowed != (-1 if padding is None else padding)]
        texts = [
            allowed[(torch.arange(min(count, folder.max_length)) * 7 + 3) % len(allowed)]
            for count in CHECK_LENGTHS
        ]
        kinds = [torch.arange(len(text)) * self.token_types // len(text) for text in texts]
        ids, mask, types = (
            torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).numpy()
            for rows in (texts, [torch.ones_like(text) for text in texts], kinds)
        )
        self.example = pack_rows(ids, mask, padding, types)
        with torch.inference_mode(), self.refusing():
            whole.set_attn_implementation("eager")
            self._expected = [self._alone(whole, *text) for text in zip(texts, kinds, strict=True)]
        self.reduction = {"cls": "first"}.get(folder.pooling, folder.pooling)
        self._ending = None  # the token that a decoder's head passes over at the end of a text
        if folder.classifies:
            ending = getattr(whole.config, "pad_token_id", None)
            with self.refusing():
                self._head = Head(whole)
                self.reduction = "" if folder.per_token else self._head.reduction()
            self._ending = ending if self.reduction == "last" else None
        self.width = int(self._expected[0].shape[-1])

    def run(
        self,
        layers: Layers,
        ids: Array,
        mask: Array,
        types: Array | None = None,
        *,
        reduced: bool = False,
    ) -> Array:
        """Return FP32 `[B, width]`, or `[B, L, width]` of a folder that gives a vector per token.

        Args:
            layers: of this encoder.
            ids: INT64 `[B, L]`.
            mask: INT64 `[B, L]`, not 0 where a token is real. What is not costs nothing, and is 0
                in an output per token. A row without any token is 0.
            types: INT64 `[B, L]`, below `token_types`; None: all are 0.
            reduced: the layers give, of each row that has tokens, what `reduction` says: FP32
                `[B', W]` in the order of the packed rows.
        """
        if self._ending is not None:
            mask = mask * _up_to_last(mask * (ids != self._ending))
        packed = pack_rows(ids, mask, self._padding, types)
        tokens = len(packed.rows)
        shape = ids.shape if self._folder.per_token else ids.shape[:1]
        found = np.zeros((*shape, self.width), np.float32)
        if not tokens:
            return found
        hidden = layers(packed)
        if self._folder.per_token:
            found[packed.rows, packed.columns[:tokens]] = self._per_token(hidden[:tokens])
            return found
        rows = hidden if reduced else self.reduced(hidden[:tokens], packed.firsts)
        found[packed.owners] = self._of_rows(rows, packed)
        return found

    def hidden(
        self, ids: torch.Tensor, positions: torch.Tensor, types: torch.Tensor | None
    ) -> torch.Tensor:
        """Return what the modules make of tokens end to end: FP `[R, W]` of INT64 `[R]` each."""
        given = {"input_ids": ids, "position_ids": positions}
        if types is not None and self.token_types > 1:
            given["token_type_ids"] = types
        found = self.base(**{name: tokens.unsqueeze(0) for name, tokens in given.items()})
        states: torch.Tensor = found.last_hidden_state[0]
        return states

    def difference(self, layers: Layers) -> float:
        """Return how far the example's results are, at most, from each text's alone.

        Raises:
            Unsupported: too far: the encoder looks at other tokens outside of attention. A number
                that is far larger than all others hides that in 16 bits, so a row has to stay as it
                is, too, when the other rows get other tokens.
        """
        packed = self.example
        with torch.inference_mode(), self.refusing():
            hidden = layers(packed)[: len(packed.rows)]
            if self._folder.classifies and not self._folder.per_token:
                own = self._of_rows(self.reduced(hidden, packed.firsts), packed)
                pairs = [
                    (own[at], self._expected[r]) for at, r in enumerate(packed.owners.tolist())
                ]
            else:
                per_token = self._per_token(hidden)
                pairs = [(per_token[packed.rows == r], one) for r, one in enumerate(self._expected)]
            largest = max(float(np.abs(one).max()) for one in self._expected)
            apart = max(float(np.abs(found - one).max()) for found, one in pairs)
            if not apart <= self.tolerance * largest:
                raise Unsupported(
                    f"rows end to end differ from rows alone by {apart:.2g}, the largest number is "
                    f"{largest:.2g}: {self._name} "
                    "looks at other tokens outside of its attention, or weighs them otherwise"
                )
            self._check_touched(layers, hidden)
        return apart

    def _check_touched(self, layers: Layers, hidden: Array) -> None:
        """Raise unless a row of the example stays as it is when all others get other tokens.

        `hidden` is what the layers have made of the example.
        """
        packed = self.example
        own = np.flatnonzero(packed.rows == 0)
        others = packed.ids.copy()
        others[: len(packed.rows)] = packed.ids[len(packed.rows) - 1]
        others[own] = packed.ids[own]
        row, again = hidden[own], layers(packed)[own]
        beside_others = layers(replace(packed, ids=others))[own]
        most = TOUCHED * float(np.abs(row).max()) + 2 * float(np.abs(row - again).max())
        if not (change := float(np.abs(row - beside_others).max())) <= most:
            raise Unsupported(
                f"a row changes by {change:.2g}, expected at most {most:.2g}, with the tokens of "
                f"other rows: {self._name} looks at them outside of its attention"
            )

    def refusing(self) -> contextlib.AbstractContextManager[None]:
        """Say what there is instead, too."""
        return refusing(self._folder.folder, "transformers does not run it end to end", _INSTEAD)

    def reduced(self, hidden: Array, firsts: Array) -> Array:
        """Return what `reduction` says of each row, FP32 `[B', W]`, in memory of its own.

        `hidden` is FP32 `[T, W]`, the states of all tokens; it comes back where all of them count.
        `firsts` is where each row begins.
        """
        if not self.reduction:
            return hidden
        if self.reduction == "first":
            return hidden[firsts]
        if self.reduction == "last":
            lasts: Array = hidden[np.append(firsts[1:], len(hidden)) - 1]
            return lasts
        ends = pairwise([*firsts.tolist(), len(hidden)])
        rows = np.empty((len(firsts), hidden.shape[1]), np.float32)
        mean = self.reduction == "mean"
        reduce = np.add.reduce if mean else np.maximum.reduce
        for row, (begin, end) in zip(rows, ends, strict=True):
            reduce(hidden[begin:end], axis=0, out=row)  # half of the time of `reduceat`
            if mean:
                np.divide(row, end - begin, out=row)
        return rows

    def _of_rows(self, rows: Array, packed: PackedRows) -> Array:
        """Return what is given of each row of `packed.owners`, FP32 `[B', width]`.

        `rows` is what `reduced` gives.
        """
        if self._folder.classifies:
            spans = [(0, len(rows), 1)] if self.reduction else packed.spans
            return self._head.scores(rows, spans)
        if not self._folder.normalised:
            return rows
        lengths = np.sqrt(np.einsum("rw,rw->r", rows, rows))  # half of the time of `rows**2`
        normalised: Array = rows / np.maximum(lengths, MIN_LENGTH)[:, np.newaxis]
        return normalised

    def _per_token(self, hidden: Array) -> Array:
        """Return what is given of each token, FP32 `[T, W]`: itself, or what a classifier says."""
        if not self._folder.classifies:
            return hidden
        scores: Array = self._head.scores(hidden, [(0, 1, len(hidden))])[0]
        return scores

    def _alone(self, whole: Any, text: torch.Tensor, types: torch.Tensor) -> Array:
        """Return what the model computes for one text: FP32 `[L, W]`, or `[W]` of its scores."""
        arguments = {"token_type_ids": types.unsqueeze(0)} if self.token_types > 1 else {}
        found = whole(input_ids=text.unsqueeze(0), **arguments)
        own = found.logits if self._folder.classifies else found.last_hidden_state
        alone: Array = own[0].float().numpy()
        return alone


def _up_to_last(counted: Array) -> Array:
    """Return where rows `[B, L]` have one that is not 0, or will have; of those without any all."""
    to_come: Array = np.logical_or.accumulate(counted[:, ::-1] != 0, 1)[:, ::-1]
    return to_come | ~to_come[:, :1]


_INSTEAD = "; `ge-backend import` makes an ONNX file of an encoder, which is served padded"
