"""The seam to engines that run a language model by themselves: requests in, tokens out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ge_backend.errors import GeError
from ge_backend.tensors import Array
from ge_text.models.sampling import Sampling
from ge_text.models.structure import Structure

__all__ = ["EngineRequest", "Levels", "ScheduledModel", "TokenDelta"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """One text that is to be written.

    Attributes:
        name: no two that are under way share one.
        prompt: tokens, those included that another engine has drawn.
        seeded: whether `sampling.seed` is the client's wish; otherwise any numbers will do.
        max_tokens, min_tokens: still to come.
        ends: tokens that end it with `stop`, the model's own ends of text included where wanted.
        prefix_cache, cache_salt: as in `generate.parameters.Parameters`.
        structure: what the text has to be, which the model compiles by itself; None: anything.
        timeout_s: None: no limit.
    """

    name: str
    prompt: tuple[int, ...]
    sampling: Sampling
    seeded: bool
    max_tokens: int
    min_tokens: int = 0
    ends: tuple[int, ...] = ()
    priority: int = 0
    prefix_cache: bool = True
    cache_salt: str = ""
    structure: Structure | None = None
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenDelta:
    """What is new of a text.

    Attributes:
        tokens, logprobs, ranks, top: as in `generate.update.Update`.
        finish: `stop` or `length`; "" while more comes, or where `error` says what went wrong.
    """

    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    ranks: tuple[int, ...] = ()
    top: tuple[tuple[Array, Array] | None, ...] = ()
    finish: str = ""
    error: GeError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """How full the engine is, and how often it has taken a text's cache away since it began."""

    waiting: int = 0
    running: int = 0
    cache_used: float = 0.0
    preempted: int = 0


class ScheduledModel(Protocol):
    """A causal decoder that plans its own steps. Any thread may call it.

    Attributes:
        vocabulary: tokens are 0 to this, without it.
        max_positions: the longest sequence, prompt and output together.
        eos: tokens that end a text; may be empty.
        cache_blocks, block_size: of its cache.
    """

    vocabulary: int
    max_positions: int
    eos: tuple[int, ...]
    cache_blocks: int
    block_size: int

    def begin(self, request: EngineRequest, send: Callable[[TokenDelta], None]) -> None:
        """Write a text; `send` is called from one thread, at last with `finish` or `error`."""

    def end(self, name: str) -> None:
        """Stop writing a text: `send` may get a little more of it, and no end."""

    def levels(self) -> Levels:
        """Return how full it is."""

    def close(self) -> None:
        """Free everything; no text is under way."""
