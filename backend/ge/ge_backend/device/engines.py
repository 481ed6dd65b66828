"""Which engine of a device runs which kind of file, imported when the first such file is loaded."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ge_backend.device.base import Graph, GraphSource
from ge_backend.errors import ConfigError, DeviceUnavailable, ModelError

__all__ = ["Engine", "Engines"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One way to run a file.

    Attributes:
        module, attribute: the `Graph` class; a model of one engine never waits for the import of
            another.
        library: what it needs to be installed.
        extra: the extra of this package that installs it.
        options: how the options begin that only this engine understands; "" where it has none.
    """

    module: str
    attribute: str
    library: str
    extra: str
    options: str = ""


class Engines:
    """The engines of one device, by the end of a file's name: `.onnx`, or `tokenizer.json`.

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
            ConfigError: an option is meant for another engine.
            DeviceUnavailable: the engine is not installed.
        """
        path = Path(source.path)
        engine = next((e for end, e in self._engines.items() if path.name.endswith(end)), None)
        if engine is None:
            raise ModelError(f"{path}: the {self._device} device runs {', '.join(self._engines)}")
        if not path.is_file():
            raise ModelError(f"{path}: there is no such file")
        self._check_options(source, engine)
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

    def _check_options(self, source: GraphSource, engine: Engine) -> None:
        """See that no option is there that only another engine of this device understands."""
        others = {other.options for other in self._engines.values()} - {engine.options, ""}
        for key, _ in source.options:
            if key.startswith(tuple(others)):
                raise ConfigError(
                    f"parameter {key!r} has no meaning for {Path(source.path).name}; remove it"
                )
