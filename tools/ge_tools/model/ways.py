"""The ways to serve a model file: engines that are installed, and precisions that they have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ge_backend.device.engines import installed
from ge_backend.model.config.engine_table import EngineRow, engines_for
from ge_backend.model.config.model import ModelConfig
from ge_backend.model.files.model_file import find_model_file

__all__ = ["Way", "way_of", "ways_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to serve a model.

    Attributes:
        engine: the parameter; "" where the device runs the file by itself.
        precision: the parameter.
        buckets: parameters that set sizes, with their values; () leaves the sizes as they are.
    """

    engine: str
    precision: str
    buckets: tuple[tuple[str, str], ...] = ()

    def parameters(self) -> dict[str, str]:
        """Return the parameters that set it in config.pbtxt."""
        engine = {"engine": self.engine} if self.engine else {}
        return {**engine, "precision": self.precision, **dict(self.buckets)}

    def of(self, config: ModelConfig) -> ModelConfig:
        """Return the configuration served so, in this process, without learning beside it."""
        sizes = {key.removeprefix("buckets."): text for key, text in self.buckets}
        return replace(
            config,
            engine=self.engine,
            precision=self.precision,
            buckets={**config.buckets, **sizes},
            executor="inline",
            learn="off",
            warmup_background=False,
        )


def way_of(config: ModelConfig, engine: str) -> Way:
    """Return the way that a model is served in, by what runs it."""
    names = {row.name for row in _rows(config)}
    return Way(engine=engine if engine in names else "", precision=config.precision)


def ways_of(config: ModelConfig, precisions: Sequence[str] = ()) -> tuple[Way, ...]:
    """Return the ways that this machine has, by the table of engines, in its order.

    Args:
        config: the model's.
        precisions: only these; () is all that an engine has.

    Raises:
        ModelError: there is no model file.
    """
    rows = [row for row in _rows(config) if installed(row)]
    if not rows:
        return (Way(engine="", precision=config.precision),)
    return tuple(
        Way(engine=row.name, precision=precision)
        for row in rows
        for precision in row.precisions
        if not precisions or precision in precisions
    )


def _rows(config: ModelConfig) -> Sequence[EngineRow]:
    path = find_model_file(config.directory, config.filename, config.device)
    return engines_for(path.name, config.placement.kind)
