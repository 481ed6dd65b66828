"""The bounds of a model's own queue, in the host's words for its `queue_policy`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ge_backend.errors import ConfigError

__all__ = ["QueuePolicy"]

SIZE, TIMEOUT = "max_queue_size", "default_timeout_microseconds"
# Python refuses to read thousands of them.
MOST_DIGITS = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """How many requests may wait for an instance, and how long.

    Attributes:
        max_size: while a batch is served; 0 is no bound.
        timeout_us: until a request begins to run, if its client says nothing shorter; 0 is no
            bound.
    """

    max_size: int
    timeout_us: int

    @classmethod
    def read(cls, values: Mapping[str, str], *, sequences: bool) -> QueuePolicy | None:
        """Read it from a model's settings; None where nothing is bounded.

        Raises:
            ConfigError: a value is no number, or the model takes part in sequences.
        """
        policy = cls(max_size=_count(SIZE, values), timeout_us=_count(TIMEOUT, values))
        if not (policy.max_size or policy.timeout_us):
            return None
        if sequences:
            raise ConfigError(
                f"{SIZE} and {TIMEOUT} do not go with sequence_batching, whose requests have to be "
                "served in Triton's order; leave them out"
            )
        return policy


def _count(key: str, values: Mapping[str, str]) -> int:
    text = values[key]
    if not (text.isdecimal() and len(text) <= MOST_DIGITS):
        raise ConfigError(
            f"parameter {key!r} is {text!r:.80}; expected a whole number of at most {MOST_DIGITS} "
            "digits, or 0 for none"
        )
    return int(text)
