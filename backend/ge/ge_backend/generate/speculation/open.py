"""The speculation that settings ask for."""

from __future__ import annotations

from collections.abc import Callable

from ge_backend.generate.figures import Tally
from ge_backend.generate.settings import EngineSettings, SpeculationMode
from ge_backend.generate.speculation.base import Drafter
from ge_backend.generate.speculation.ngram import NgramDrafter
from ge_backend.generate.speculation.speculation import Speculation

__all__ = ["open_speculation"]


def open_speculation(
    settings: EngineSettings,
    tally: Tally,
    clock: Callable[[], float],
    drafter: Drafter | None = None,
) -> Speculation | None:
    """Return it, with this drafter or the text itself; None where nothing is to be guessed."""
    if settings.speculation is SpeculationMode.OFF:
        return None
    return Speculation(
        drafter or NgramDrafter(),
        settings.draft_lengths,
        measured=not settings.num_speculative_tokens,
        tally=tally,
        clock=clock,
    )
