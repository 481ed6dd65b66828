"""Which engine of a device opens a file, imported when the first such file is loaded."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import pkgutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from ge_backend.device.base import Graph, GraphSource
from ge_backend.device.imports import importing
from ge_backend.errors import ConfigError, DeviceUnavailable, ModelError, Unsupported, drop_frames
from ge_backend.model.config.engine_table import ENGINES, EngineRow

__all__ = ["Engines", "installed", "preferred"]

log = logging.getLogger(__name__)

_Given = TypeVar("_Given")


class Engines(Generic[_Given]):
    """The engines of one kind of device.

    One file at a time is loaded per library: torch.export.load keeps its state in a global.

    Args:
        kind: of the device.
        table: all engines.
    """

    def __init__(self, kind: str, table: Sequence[EngineRow] = ENGINES) -> None:
        self._kind = kind
        self._engines = [row for row in table if kind in row.kinds]
        self._loading = {row.libraries[0]: threading.Lock() for row in self._engines}

    def load(self, source: GraphSource, given: _Given) -> Graph:
        """Return the graph that the file's engine makes of a source and what the device gives it.

        Of several engines the one that the source names, else the first that is installed, can be
        imported, can compute in its precision, and does not refuse this very file.

        Raises:
            ModelError: no engine of the device runs such a file, or it is missing or corrupt.
            ConfigError: an option is meant for another engine, or the engine named for other files.
            DeviceUnavailable: the engine is not installed, or cannot be imported.
            Unsupported: every engine refuses the file; this is what the first one says.
        """
        path = Path(source.path)
        engines = self._engines_of(source, path)
        if not path.is_file():
            raise ModelError(f"{path}: there is no such file")
        refused: list[DeviceUnavailable | Unsupported] = []
        for engine in engines:
            try:
                return self._opened(engine, source, given)
            except (DeviceUnavailable, Unsupported) as error:
                refused.append(drop_frames(error))  # what it has read of the file is freed first
                if engine is not engines[-1]:
                    log.info("engine %s is left out: %s", engine.name, error)
        raise refused[0]

    def _opened(self, engine: EngineRow, source: GraphSource, given: _Given) -> Graph:
        self._check_options(source, engine)
        library = engine.libraries[0]
        try:
            with importing():
                importlib.import_module(library)
                opener: Callable[[GraphSource, _Given], Graph]
                opener = pkgutil.resolve_name(engine.opener)
        except ImportError as error:
            raise DeviceUnavailable(
                f"{Path(source.path).name} needs {library} ({error}); "
                f"pip install 'triton-ge-backend[{engine.extra}]'"
            ) from error
        with self._loading[library]:
            graph = opener(source, given)
        graph.engine = engine.name
        return graph

    def _engines_of(self, source: GraphSource, path: Path) -> Sequence[EngineRow]:
        fitting = [row for row in self._engines if path.name.endswith(row.ends)]
        if not fitting:
            ends = dict.fromkeys(end for row in self._engines for end in row.ends)
            raise ModelError(f"{path}: the {self._kind} device runs {', '.join(ends)}")
        named = [row for row in fitting if row.name == source.engine]
        if source.engine and not named:
            names = ", ".join(row.name for row in fitting)
            raise ConfigError(
                f"parameter 'engine' is {source.engine!r}; {path.name} is run by {names} on "
                f"{self._kind}"
            )
        return _in_order(named or fitting, source.precision)

    def _check_options(self, source: GraphSource, engine: EngineRow) -> None:
        """See that no option is there that only another engine of this device understands."""
        others = {other.options for other in self._engines} - {engine.options, ""}
        for key, _ in source.options:
            if key.startswith(tuple(others)):
                raise ConfigError(
                    f"parameter {key!r} has no meaning for {Path(source.path).name}; remove it"
                )


def preferred(engines: Sequence[EngineRow], precision: str) -> EngineRow:
    """Return the first engine that is installed and has the precision, else one that may."""
    return _in_order(engines, precision)[0]


def _in_order(engines: Sequence[EngineRow], precision: str) -> Sequence[EngineRow]:
    """Return those that are installed and have the precision, else one that may.

    That is the one which takes least to install: an encoder needs no OpenVINO, which is faster.
    """
    able = [row for row in engines if precision in row.precisions]
    least = min(able or engines, key=lambda row: len(row.libraries))
    return [row for row in able if installed(row)] or [least]


def installed(engine: EngineRow) -> bool:
    """Whether the engine's libraries can be found; nothing is imported."""
    try:
        return all(importlib.util.find_spec(library) for library in engine.libraries)
    except (ImportError, ValueError):  # a module that is hidden, or was put there by hand
        return False
