"""The bounds of a model's own queue, in the host's words for its `queue_policy`."""

from __future__ import annotations

from dataclasses import dataclass

from ge_backend.errors import ConfigError

__all__ = ["QueuePolicy"]


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
    def of(cls, max_size: int, timeout_us: int, *, sequences: bool) -> QueuePolicy | None:
        """Return it; None where nothing is bounded.

        Raises:
            ConfigError: the model takes part in sequences.
        """
        if not (max_size or timeout_us):
            return None
        if sequences:
            raise ConfigError(
                "max_queue_size and default_timeout_microseconds do not go with sequence_batching, "
                "whose requests have to be served in Triton's order; leave them out"
            )
        return cls(max_size=max_size, timeout_us=timeout_us)
