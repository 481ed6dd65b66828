"""Which engine of a device runs which kind of file, imported when the first such file is loaded."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ge_backend.device.base import Graph, GraphSource
from ge_backend.errors import DeviceUnavailable, ModelError

__all__ = ["Engine", "Engines"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One way to run a file.

    Attributes:
        module, attribute: the `Graph` class; a model of one engine never waits for the import of
            another.
        library: what it needs to be installed.
        extra: the extra of this package that installs it.
    """

    module: str
    attribute: str
    library: str
    extra: str


class Engines:
    """The engines of one device, by the suffix of a file.

    One file at a time is loaded per library: torch.export.load keeps its state in a global.
    """

    def __init__(self, device: str, engines: Mapping[str, Engine]) -> None:
        self._device = device
        self._engines = engines
        self._loading = {engine.library: threading.Lock() for engine in engines.values()}

    def load(self, source: GraphSource, **given: Any) -> Graph:
        """Return the graph that the file's engine makes of `source` and what else is given.

        Raises:
            ModelError: no engine of the device runs such a file, or it is missing or corrupt.
            DeviceUnavailable: the engine is not installed.
        """
        path = Path(source.path)
        if path.suffix not in self._engines:
            raise ModelError(f"{path}: the {self._device} device runs {', '.join(self._engines)}")
        if not path.is_file():
            raise ModelError(f"{path}: there is no such file")
        engine = self._engines[path.suffix]
        try:
            importlib.import_module(engine.library)
        except ImportError as error:
            raise DeviceUnavailable(
                f"{path.name} needs {engine.library} ({error}); "
                f"pip install 'triton-ge-backend[{engine.extra}]'"
            ) from error
        with self._loading[engine.library]:
            opened = getattr(importlib.import_module(engine.module), engine.attribute)
            graph: Graph = opened(source, **given)
            return graph
