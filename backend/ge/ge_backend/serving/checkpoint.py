"""Which folder a checkpoint is served from: its own, or a copy once other files lie there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ge_backend.device.files.model_file import stamp_of
from ge_backend.errors import ModelError
from ge_backend.executor.client.session import Fallback
from ge_backend.executor.protocol.generation_messages import ServiceSpec

__all__ = ["ServedCheckpoint"]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class ServedCheckpoint:
    """A checkpoint as a stub has it loaded, again and again.

    Attributes:
        spec: what was loaded first.
        files: returns those of the checkpoint.
        stamp: of these, as they were then.
        copy: of these; None while there is none.
    """

    spec: ServiceSpec
    files: Callable[[], Sequence[Path]]
    stamp: str
    copy: Fallback | None = None

    def key(self) -> str:
        """Return what names the service now: all stubs that serve the same say the same."""
        if self.copy is None or self._is_current():
            return self.spec.key()
        log.warning(
            "the files in %s are others than those that are served, which are loaded from their "
            "copy; have the server load the model to serve the new ones",
            self.spec.folder,
        )
        return replace(self.spec, folder=str(self.copy.folder)).key()

    def close(self) -> None:
        """Let go of the copy."""
        copy, self.copy = self.copy, None
        if copy is not None:
            copy.close()

    def _is_current(self) -> bool:
        try:
            return stamp_of(self.files()) == self.stamp
        except (OSError, ModelError):
            return False
