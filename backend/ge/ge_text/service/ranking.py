"""Of all samples that were drawn for a request, the best few: what is told of them, at the end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ge_text.protocol import Delta, Refused, joined
from ge_text.service.outbox import Outbox

__all__ = ["Ranking"]


@dataclass(slots=True)
class Ranking:
    """Between the answer in the making and its client's outbox.

    Args:
        outbox: of the client.
        best: how many samples it gets: those with the highest log-probability per token, in order.
        told: places that it has already, from an executor that died; the same texts come again.
    """

    outbox: Outbox
    best: int
    told: frozenset[int] = frozenset()
    _samples: dict[int, list[Delta]] = field(init=False, default_factory=dict)

    def put(self, delta: Delta) -> None:
        """Keep what is new of a sample; once all have ended, pass the best ones on."""
        self._samples.setdefault(delta.sample, []).append(delta)
        if sum(bool(parts[-1].finish) for parts in self._samples.values()) < delta.samples:
            return
        whole = map(joined, self._samples.values())
        ranked = sorted(whole, key=lambda one: (-one.cumulative / len(one.ids), one.sample))
        self.outbox.put(
            *(
                replace(one, sample=place, samples=self.best)
                for place, one in enumerate(ranked[: self.best])
                if place not in self.told
            )
        )

    def say(self, message: Refused) -> None:
        """Pass a refusal on."""
        self.outbox.say(message)
