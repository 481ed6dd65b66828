"""Which files a model is loaded from: its own, or a copy once other files lie in their place."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ge_backend.model.files.model_file import stamp_of

__all__ = ["KeptCopy", "ServedFiles"]

log = logging.getLogger(__name__)


class KeptCopy(Protocol):
    """A model's files as they were when they were loaded."""

    @property
    def folder(self) -> Path:
        """Holds the copy as their own folder does."""

    def close(self) -> None:
        """Give the copy up."""


@dataclass(slots=True)
class ServedFiles:
    """A model's files as a stub has them loaded, again and again.

    Attributes:
        place: the folder that they were loaded from first.
        files: returns those of the model.
        stamp: of these, as they were then.
        copy: of these; None while there is none.
    """

    place: Path
    files: Callable[[], Sequence[Path]]
    stamp: str
    copy: KeptCopy | None = None

    def folder(self) -> Path:
        """Return where they are now."""
        if self.copy is None or self._are_current():
            return self.place
        log.warning(
            "the files in %s are others than those that are served, which are loaded from their "
            "copy; have the server load the model to serve the new ones",
            self.place,
        )
        return self.copy.folder

    def close(self) -> None:
        """Give the copy up, if there is one."""
        copy, self.copy = self.copy, None
        if copy is not None:
            copy.close()

    def _are_current(self) -> bool:
        try:
            return stamp_of(self.files()) == self.stamp
        except Exception:  # noqa: BLE001 - whatever lies there now, it is something else
            return False
