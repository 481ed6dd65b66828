"""The kinds of models there are, one row each.

To add a kind, add a row: how a model's folder is recognised, what completes its configuration, and
what serves an instance. All are names, resolved when they are used: a stub imports its own kind
alone, and a root that is left out (`ge_text`) costs its kind only.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ge_backend.errors import DeviceUnavailable

__all__ = [
    "FUSED",
    "GRAPH",
    "KINDS",
    "TEXT",
    "Described",
    "ModelKind",
    "Serving",
    "is_fused",
    "kind_of",
]


class Described(Protocol):
    """What a model's kind is told by, as `ModelConfig` has it.

    Attributes:
        directory: the version folder.
        filename: `default_model_filename`, "" where none is given.
        fuse: the ensemble that the model runs, "" for all others.
    """

    @property
    def directory(self) -> Path:
        """See above."""

    @property
    def filename(self) -> str:
        """See above."""

    @property
    def fuse(self) -> str:
        """See above."""


class Serving(Protocol):
    """What serves one instance of a model in its stub."""

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        """Answer the host's requests: one response each, or None where they come by senders."""

    @property
    def ready(self) -> bool:
        """Whether requests make sense now."""

    def close(self) -> None:
        """Answer what waits, and leave the executor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelKind:
    """One kind of model.

    Attributes:
        name: as messages call it.
        matches: "module:function" of `Described`: whether a model is of this kind.
        completes: "module:function" of the host's document and a `ModelConfig`: returns the whole
            document with what it lacks.
        opens: "module:class" with `open(instance)`: serves one instance.
        graph: the model has a graph of its own, with buckets.
    """

    name: str
    matches: str
    completes: str
    opens: str
    graph: bool

    def complete(self, document: Mapping[str, Any], config: Any) -> dict[str, Any]:
        """Return the host's configuration of a model, completed; `config` is its `ModelConfig`.

        Raises:
            GeError: the model's files do not say what is lacking, or contradict what is there.
        """
        completed: dict[str, Any] = self._resolved(self.completes)(document, config)
        return completed

    def open(self, instance: Any) -> Serving:
        """Load the model of a `host.instance.Instance`.

        Raises:
            GeError: it cannot be served as configured.
        """
        serving: Serving = self._resolved(self.opens).open(instance)
        return serving

    def _resolved(self, name: str) -> Any:
        try:
            return pkgutil.resolve_name(name)
        except ModuleNotFoundError as error:
            root = name.partition(".")[0]
            if error.name != root:
                raise
            raise DeviceUnavailable(
                f"a model that is {self.name} is served by {root}, which is not installed; copy "
                f"the folder {root} beside ge_backend"
            ) from error


TEXT = ModelKind(
    name="a text generator",
    matches="ge_backend.model.files.checkpoint:generates_text",
    completes="ge_text.stub.tensors:completed_for_text",
    opens="ge_text.stub.instance:Generation",
    graph=False,
)
FUSED = ModelKind(
    name="a fused ensemble",
    matches="ge_backend.kinds:is_fused",
    completes="ge_backend.serving.fused:fused_document",
    opens="ge_backend.host.backend:Backend",
    graph=False,
)
GRAPH = ModelKind(
    name="a graph",
    matches="",
    completes="ge_backend.serving.connect:complete_document",
    opens="ge_backend.host.backend:Backend",
    graph=True,
)
# The first that matches counts; the last one matches all.
KINDS = (TEXT, FUSED, GRAPH)


def kind_of(model: Described) -> ModelKind:
    """Return the kind of a model."""
    return next(
        kind for kind in KINDS if not kind.matches or pkgutil.resolve_name(kind.matches)(model)
    )


def is_fused(model: Described) -> bool:
    """Whether a model runs the steps of an ensemble in place of a graph of its own."""
    return bool(model.fuse)
