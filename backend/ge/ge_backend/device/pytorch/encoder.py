"""A Hugging Face encoder that never computes padding: rows lie end to end, whatever their lengths.

The modules are transformers' own. Everything in them but attention looks at one token at a time, so
the tokens of all rows stand behind one another in one row, and a registered attention function
keeps the rows apart. Linear layers get weights packed for the processor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch

from ge_backend.device.files.encoder_folder import EncoderFolder
from ge_backend.device.pytorch.language.linear import Linear, linear
from ge_backend.device.pytorch.packed_rows import (
    CurrentRows,
    PackedRows,
    pack_rows,
    packed_attention,
)
from ge_backend.device.pytorch.pretrained import load_pretrained, refusing
from ge_backend.errors import Unsupported

__all__ = ["PackedEncoder"]

PACKED = "ge_packed"
# Texts that are compared at load with what the model computes for each alone; none is longer than
# the checkpoint takes. The longest sees beyond a usual local window.
CHECK_LENGTHS = 5, 1, 5, 160
# Largest difference that rounding makes, as a share of the largest number.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}
# A checkpoint of embeddings often lacks the pooler, whose result is not used then.
UNUSED = "pooler"


class PackedEncoder:
    """An encoder and what comes behind it, for the rows of one run at a time per thread.

    Args:
        folder: what the checkpoint is to become.
        dtype: of weights and computing; what comes out is FP32.

    Attributes:
        width: of the output's last axis.
        difference: the largest from what the model computes for each text alone.

    Raises:
        ModelError: the weights are not those of the architecture, or only pickles are there.
        Unsupported: transformers has no such encoder, or it looks at other tokens outside of
            attention.
    """

    def __init__(self, folder: EncoderFolder, dtype: torch.dtype) -> None:
        self._folder = folder
        self._rows = CurrentRows()
        with _refusing(folder):
            whole = _load(folder, dtype)
        base = whole.base_model if folder.classifies else whole
        self._whole, self._base = whole, base
        padding = getattr(getattr(base, "embeddings", None), "padding_idx", None)
        # RoBERTa and its kin count positions from behind the padding's.
        self._first_position = 0 if padding is None else padding + 1
        allowed = torch.arange(base.config.vocab_size)
        allowed = allowed[allowed != (-1 if padding is None else padding)]
        texts = [
            allowed[(torch.arange(min(count, folder.max_length)) * 7 + 3) % len(allowed)]
            for count in CHECK_LENGTHS
        ]
        with torch.inference_mode(), _refusing(folder):
            whole.set_attn_implementation("eager")
            expected = [self._alone(text) for text in texts]
            whole.set_attn_implementation(PACKED)
            _pack_weights(base)
            for module in whole.modules():
                module.ge_rows = self._rows
            self.width = int(expected[0].shape[-1])
            self.difference = self._check(texts, expected)

    def run(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return FP32 `[B, width]`, or `[B, L, width]` of a folder that gives a vector per token.

        Args:
            ids: INT64 `[B, L]`.
            mask: INT64 `[B, L]`, not 0 where a token is real. What is not costs nothing, and is 0
                in an output per token. A row without any token is 0.
        """
        packed = pack_rows(ids, mask)
        shape = ids.shape if self._folder.per_token else ids.shape[:1]
        found = torch.zeros(*shape, self.width)
        if not len(packed.rows):
            return found
        hidden = self._hidden(packed)[: len(packed.rows)]
        if self._folder.per_token:
            found[packed.rows, packed.columns[: len(packed.rows)]] = hidden.float()
            return found
        if self._folder.classifies:
            found[packed.owners] = self._scores(hidden.index_select(0, packed.firsts)).float()
            return found
        pooled = self._pooled(hidden.float(), packed, found)
        return torch.nn.functional.normalize(pooled, dim=1) if self._folder.normalised else pooled

    def _hidden(self, packed: PackedRows) -> torch.Tensor:
        self._rows.spans = packed.spans
        positions = (packed.columns + self._first_position).unsqueeze(0)
        found = self._base(input_ids=packed.ids.unsqueeze(0), position_ids=positions)
        hidden: torch.Tensor = found.last_hidden_state[0]
        return hidden

    def _pooled(
        self, hidden: torch.Tensor, packed: PackedRows, found: torch.Tensor
    ) -> torch.Tensor:
        if self._folder.pooling == "cls":
            found[packed.owners] = hidden.index_select(0, packed.firsts)
        elif self._folder.pooling == "max":
            found[packed.owners] = torch.stack([row.amax(0) for row in _by_row(hidden, packed)])
        else:
            counts = torch.bincount(packed.rows, minlength=len(found)).clamp(min=1)
            found.index_add_(0, packed.rows, hidden).div_(counts.unsqueeze(1))
        return found

    def _scores(self, firsts: torch.Tensor) -> torch.Tensor:
        """Return what the classifier says of each row's first token, FP `[B', width]`."""
        pooler = getattr(self._base, "pooler", None)
        seen = firsts.unsqueeze(1)
        scores: torch.Tensor = self._whole.classifier(seen if pooler is None else pooler(seen))
        return scores

    def _alone(self, text: torch.Tensor) -> torch.Tensor:
        """Return what the model itself computes for one text: FP `[L, W]`, or `[W]` of scores."""
        found = self._whole(input_ids=text.unsqueeze(0))
        own: torch.Tensor = (
            found.logits[0] if self._folder.classifies else found.last_hidden_state[0]
        )
        return own.float()

    def _check(self, texts: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
        ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
        mask = torch.nn.utils.rnn.pad_sequence(list(map(torch.ones_like, texts)), batch_first=True)
        packed = pack_rows(ids, mask)
        hidden = self._hidden(packed)[: len(packed.rows)]
        if self._folder.classifies:
            own = self._scores(hidden.index_select(0, packed.firsts))
            pairs = [(own[at], expected[row]) for at, row in enumerate(packed.owners.tolist())]
        else:
            pairs = [(hidden[packed.rows == row], one) for row, one in enumerate(expected)]
        largest = max(float(one.abs().max()) for one in expected)
        apart = max(float((found.float() - one).abs().max()) for found, one in pairs)
        if not apart <= TOLERANCE[hidden.dtype] * largest:
            raise Unsupported(
                f"rows end to end differ from rows alone by {apart:.2g}, the largest number is "
                f"{largest:.2g}: "
                f"{type(self._base).__name__} looks at other tokens outside of its attention"
            )
        return apart


def _by_row(hidden: torch.Tensor, packed: PackedRows) -> Sequence[torch.Tensor]:
    """Return the tokens of each row of `packed.owners`."""
    rows: Sequence[torch.Tensor] = hidden.tensor_split(packed.firsts[1:].tolist())
    return rows


class _PackedLinear(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    def __init__(self, layer: Linear) -> None:
        super().__init__()
        self._layer = layer

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self._layer(rows)


def _pack_weights(base: torch.nn.Module) -> None:
    """Give the linear layers weights in the order in which the processor reads them."""
    for parent in list(base.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is torch.nn.Linear and name != UNUSED:
                bias = None if child.bias is None else child.bias.detach()
                setattr(parent, name, _PackedLinear(linear(child.weight.detach(), bias)))


def _load(folder: EncoderFolder, dtype: torch.dtype) -> Any:
    import transformers

    # No mask is registered for ours: none is made then.
    transformers.AttentionInterface.register(PACKED, packed_attention)
    auto = transformers.AutoModel
    if folder.classifies:
        auto = transformers.AutoModelForSequenceClassification
    return load_pretrained(auto, folder.folder, dtype, unused=UNUSED)


def _refusing(folder: EncoderFolder) -> contextlib.AbstractContextManager[None]:
    """Say what there is instead, too."""
    return refusing(folder.folder, "transformers does not run it end to end", _INSTEAD)


_INSTEAD = "; `ge-backend import` makes an ONNX file of an encoder, which is served padded"
