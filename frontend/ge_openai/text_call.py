"""One prompt for a language model, as tensors of Triton's vLLM backend, and what comes back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ge_openai.logprobs import TokenLogprob, read_logprobs
from ge_openai.models import DESCRIPTION, Array

__all__ = [
    "Piece",
    "TextCall",
    "joined",
    "read_pieces",
    "text_inputs",
    "text_outputs",
]

_COUNTS = ("num_input_tokens", "num_output_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextCall:
    """What a language model is asked.

    Attributes:
        prompt: text, or tokens.
        sampling: parameters by vLLM's names, as JSON has them.
        stream: each response holds what is new; else there is exactly one.
        logprobs: whether they are wanted; how many is among `sampling`.
        counts: whether tokens are counted, as log-probabilities need it, too. Each output of each
            response costs its way through the server.
        samples: how many each response has.
        ids: the model tells which tokens were drawn.
        described: the id of the model's description that the prompt goes by; "" where it has none.
    """

    model: str
    prompt: str | tuple[int, ...]
    sampling: Mapping[str, Any]
    stream: bool
    logprobs: bool
    counts: bool
    samples: int = 1
    ids: bool = True
    described: str = ""

    @property
    def warns(self) -> bool:
        """Whether it has a schema, of which something may not be kept to."""
        return "guided_json" in self.sampling or "guided_grammar" in self.sampling

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs that a response has only if it is asked for them."""
        counts = _COUNTS if self.counts or self.logprobs else ()
        named = (("logprobs", self.logprobs), ("warnings", self.warns))
        return ("finish_reason", *counts, *(name for name, wanted in named if wanted))


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What is new of one sample.

    Attributes:
        tokens: how many the piece has; 0 where they are not counted.
        logprobs: one per token, empty where none were asked for.
        finish: `stop` or `length`; "" while the sample goes on.
        prompt_tokens: of the prompt, likewise.
        warnings: what the request says and is not kept to.
    """

    text: str
    tokens: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: str = ""
    prompt_tokens: int = 0
    warnings: tuple[str, ...] = ()


def text_inputs(call: TextCall) -> dict[str, Array]:
    """Return the input tensors by name: bool [1], object [1] of bytes, int64 [T]."""
    inputs: dict[str, Array] = {
        "stream": np.array([call.stream]),
        "exclude_input_in_output": np.array([True]),
        "sampling_parameters": np.array([json.dumps(call.sampling).encode()], np.object_),
    }
    inputs.update({f"return_{name}": np.array([True]) for name in call.outputs})
    if call.described:
        inputs[DESCRIPTION] = np.array([call.described.encode()], np.object_)
    if isinstance(call.prompt, str):
        inputs["text_input"] = np.array([call.prompt.encode()], np.object_)
    else:
        inputs["input_ids"] = np.array(call.prompt, np.int64)
    return inputs


def text_outputs(call: TextCall) -> tuple[str, ...]:
    """Return the names of the outputs that are wanted."""
    ids = ("output_ids",) if call.logprobs and call.ids else ()
    return ("text_output", *call.outputs, *ids, *((DESCRIPTION,) if call.described else ()))


def read_pieces(outputs: Mapping[str, Array]) -> list[Piece]:
    """Return what one response brings, a piece per sample; none if it is an empty last one.

    Args:
        outputs: those of `text_outputs`, each with one element per sample; `output_ids`, if the
            model has them, are those of all samples behind each other.
    """
    if "text_output" not in outputs:
        return []
    texts = [text.decode() for text in outputs["text_output"]]
    counted = "num_output_tokens" in outputs
    counts = outputs["num_output_tokens"].tolist() if counted else [0] * len(texts)
    reasons = [reason.decode() for reason in outputs["finish_reason"]]
    prompt_tokens = int(outputs["num_input_tokens"][0]) if counted else 0
    warnings = tuple(json.loads(outputs["warnings"][0])) if "warnings" in outputs else ()
    return [
        Piece(
            text=text,
            tokens=count,
            logprobs=logprobs,
            finish="" if reason == "None" else reason,
            prompt_tokens=prompt_tokens,
            warnings=warnings,
        )
        for text, count, reason, logprobs in zip(
            texts, counts, reasons, _logprobs(outputs, counts), strict=True
        )
    ]


def joined(pieces: Sequence[Piece]) -> Piece:
    """Return the pieces of one sample as one."""
    return Piece(
        text="".join(piece.text for piece in pieces),
        tokens=sum(piece.tokens for piece in pieces),
        logprobs=tuple(token for piece in pieces for token in piece.logprobs),
        finish=pieces[-1].finish,
        prompt_tokens=pieces[-1].prompt_tokens,
        warnings=pieces[-1].warnings,
    )


def _logprobs(
    outputs: Mapping[str, Array], counts: Sequence[int]
) -> list[tuple[TokenLogprob, ...]]:
    if "logprobs" not in outputs:
        return [()] * len(counts)
    if "output_ids" not in outputs:
        return [read_logprobs(text) for text in outputs["logprobs"]]
    ids = outputs["output_ids"].tolist()
    ends = np.cumsum(counts).tolist()
    return [
        read_logprobs(text, ids[end - count : end])
        for text, end, count in zip(outputs["logprobs"], ends, counts, strict=True)
    ]
