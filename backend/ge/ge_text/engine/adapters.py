"""Which adapters a model holds: each is loaded for the first step that needs it.

    may_join    a sequence joins when its adapter and those of all that run fit into the budget
    load        before a step its adapters are loaded; of the others those leave that were not used
                for longest, as far as room is needed

So what runs always has its adapter, and what waits for room of the budget waits like any other.
"""

from __future__ import annotations

from collections.abc import Iterable

from ge_backend.errors import InvalidRequest
from ge_text.engine.figures import Tally
from ge_text.engine.sequence import Sequence
from ge_text.models.adapter import StoredAdapter
from ge_text.models.base import LanguageModel

__all__ = ["AdapterCache", "adapters_of"]


class AdapterCache:
    """The adapters of one model. Not for several threads, but for `check`.

    Args:
        budget: bytes of all of them.

    Attributes:
        held: bytes by key, those first that were not used for longest.
    """

    def __init__(self, model: LanguageModel, budget: int, tally: Tally) -> None:
        self.held: dict[str, int] = {}
        self._model, self._budget, self._tally = model, budget, tally

    def check(self, adapter: StoredAdapter) -> None:
        """Raise InvalidRequest where an adapter can never be held."""
        if adapter.nbytes > self._budget:
            raise InvalidRequest(
                f"adapter {adapter.name!r} takes {adapter.nbytes} bytes and the model has "
                f"{self._budget} for all of them; raise lora_bytes"
            )

    def may_join(self, sequence: Sequence, running: Iterable[Sequence]) -> bool:
        """Return whether the adapter that a sequence has fits beside those of all that run."""
        together = adapters_of((*running, sequence)).values()
        return sum(adapter.nbytes for adapter in together) <= self._budget

    def load(self, adapter: StoredAdapter, needed: Iterable[str]) -> None:
        """See that an adapter is loaded; those of the keys that are `needed`, too, stay.

        Raises:
            GeError: it cannot be loaded; nothing is held of it.
        """
        if adapter.key in self.held:
            self.held[adapter.key] = self.held.pop(adapter.key)
            return
        for key in self._leaving(adapter.nbytes, {*needed}):
            self._model.drop_adapter(key)
            del self.held[key]
            self._tally.add("adapter_evictions")
        self._model.load_adapter(adapter)
        self.held[adapter.key] = adapter.nbytes
        self._tally.add("adapter_loads")

    def _leaving(self, nbytes: int, kept: set[str]) -> list[str]:
        """Return the keys of those that make room for this number of bytes."""
        free = self._budget - sum(self.held.values())
        leaving = []
        for key, held in self.held.items():
            if free >= nbytes:
                break
            if key not in kept:
                leaving.append(key)
                free += held
        return leaving


def adapters_of(sequences: Iterable[Sequence]) -> dict[str, StoredAdapter]:
    """Return the adapters that sequences have, by key."""
    return {
        sequence.adapter: sequence.request.adapter
        for sequence in sequences
        if sequence.adapter and sequence.request.adapter is not None
    }
