"""What serves a model instance: graphs, or a language model where its folder holds a checkpoint.

Either is imported where it is opened: a stub pays for its own, and one that only fills in a
configuration for none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

from ge_backend.device.files.checkpoint import is_checkpoint
from ge_backend.host.version_folder import version_folder

__all__ = ["Instance", "open_instance"]


class Instance(Protocol):
    """A model instance, as the stub has it."""

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        """Answer requests: a response for each, None where one is sent; None: all are sent."""

    @property
    def ready(self) -> bool:
        """Whether requests make sense now."""

    def close(self) -> None:
        """Serve what waits and leave the executors."""


def open_instance(args: dict[str, str]) -> Instance:
    """Load the model that the host's `args` describe.

    Raises:
        GeError: it cannot be served as configured; the host reports it at load.
    """
    if is_checkpoint(version_folder(json.loads(args["model_config"]))):
        from ge_backend.host.generation import Generation  # noqa: PLC0415

        return Generation.open(args)
    from ge_backend.host.backend import Backend  # noqa: PLC0415

    return Backend.open(args)
