"""Log-probabilities: from the JSON of Triton's vLLM backend to the two forms that OpenAI has."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["TokenLogprob", "chat_logprobs", "completion_logprobs", "read_logprobs"]

# JSON has no infinity. Source: vLLM's OpenAI server bounds them likewise.
_LOWEST = -9999.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """One drawn token.

    Attributes:
        top: the best tokens, as text and log-probability, best first; may hold the drawn one.
        part: its bytes where it is a part of a letter, and they are known.
        top_parts: those of the best ones; empty where none is such a part.
    """

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...]
    part: tuple[int, ...] | None = None
    top_parts: tuple[tuple[int, ...] | None, ...] = ()


def read_logprobs(text: str | bytes, ids: Sequence[int] | None = None) -> tuple[TokenLogprob, ...]:
    """Return the log-probabilities of drawn tokens.

    Args:
        text: a JSON list with an object per token: by token id its `logprob`, `rank` (none where
            it is not known) and `decoded_token`; or `null`.
        ids: the drawn tokens; None: each object's first is. Source: vLLM, `v1/engine/logprobs.py`.
    """
    read = json.loads(text) or ()
    drawn = map(next, map(iter, read)) if ids is None else map(str, ids)
    return tuple(
        _token(entries, number)
        for entries, number in zip(read, drawn)  # noqa: B905 - null is none
    )


def completion_logprobs(tokens: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
    """Return the form of `/v1/completions`; `offset`: letters of the tokens before."""
    offsets: list[int] = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.token)
    return {
        "tokens": [token.token for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [{**dict(token.top), token.token: token.logprob} for token in tokens],
        "text_offset": offsets,
    }


def chat_logprobs(tokens: Sequence[TokenLogprob], top: int) -> dict[str, Any]:
    """Return the form of `/v1/chat/completions`, with this many of the best per token."""
    return {
        "content": [
            {
                **_entry(token.token, token.logprob, token.part),
                "top_logprobs": [_entry(*best, part) for best, part in _with_parts(token)[:top]],
            }
            for token in tokens
        ],
        "refusal": None,
    }


def _with_parts(
    token: TokenLogprob,
) -> list[tuple[tuple[str, float], tuple[int, ...] | None]]:
    return list(zip(token.top, token.top_parts or (None,) * len(token.top), strict=True))


def _token(entries: Mapping[str, Any], number: str) -> TokenLogprob:
    ranked = [entry for entry in entries.values() if entry["rank"] is not None]
    ranked.sort(key=lambda entry: entry["rank"])
    drawn = entries[number]
    parts = [tuple(entry["bytes"]) if "bytes" in entry else None for entry in ranked]
    return TokenLogprob(
        token=drawn["decoded_token"],
        logprob=max(drawn["logprob"], _LOWEST),
        top=tuple((entry["decoded_token"], max(entry["logprob"], _LOWEST)) for entry in ranked),
        part=tuple(drawn["bytes"]) if "bytes" in drawn else None,
        top_parts=tuple(parts) if any(parts) else (),
    )


def _entry(token: str, logprob: float, part: tuple[int, ...] | None) -> dict[str, Any]:
    # Where a token is a part of a letter, its bytes are not known from its text.
    known = list(token.encode()) if "\ufffd" not in token else None
    return {"token": token, "logprob": logprob, "bytes": known if part is None else list(part)}
