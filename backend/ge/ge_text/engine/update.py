"""What an engine tells of a sequence after a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from ge_backend.errors import GeError
from ge_backend.tensors import Array

__all__ = ["Finish", "Sink", "Update"]


class Finish(Enum):
    """Why a sequence ended: `COMPLETE`: nothing may follow in its structure; clients see a stop."""

    STOP = "stop"
    COMPLETE = "complete"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """New tokens of one sample, or its end, or both.

    Attributes:
        id, sample: of the request, and which of its samples.
        tokens: drawn by this step, none where the sequence ended otherwise.
        logprobs: of each of them; NaN where the request did not ask.
        ranks: of each of them among all tokens, the best has 1; 0 where it is not known.
        top: of each of them the best ids int64 [K] and their log-probabilities float32 [K], best
            first; None where the request did not ask.
        finish: why nothing will follow; None: more may come.
        found: how many tokens of the prompt were in the cache already; -1: that is not known.
        error: what went wrong, with `Finish.ERROR` and `Finish.CANCELLED`.
    """

    id: str
    sample: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    ranks: tuple[int, ...] = ()
    top: tuple[tuple[Array, Array] | None, ...] = ()
    finish: Finish | None = None
    found: int = -1
    error: GeError | None = None


# Called by the thread that steps the engine, between steps: it must neither wait nor raise. Returns
# whether its text has ended the sample, which tokens do not show: then it counts as stopped.
Sink = Callable[[Update], bool]
