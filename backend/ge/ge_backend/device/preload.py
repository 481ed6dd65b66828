"""What can be done before there is a device: the imports that a first load waits for."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable
from pathlib import Path

from ge_backend.device.engines import preferred
from ge_backend.device.failures import reason
from ge_backend.device.imports import importing
from ge_backend.device.machine.openmp import spin_briefly
from ge_backend.model.config.engine_table import engines_for, language_engines

__all__ = ["imports_for", "language_imports", "preload"]

log = logging.getLogger(__name__)

# What a device is opened with, beside the engine. Not torch_npu: settings of the environment come
# before its import, and they are made when an NPU is opened.
DEVICES = {"cuda": ("torch",), "npu": ("acl",)}
# The first `torch.export.load` of a process imports for longer than it loads.
PROGRAM = "ge_backend.engines.torch.program:load_a_program"


def imports_for(
    device: str, path: Path, *, engine: str = "", precision: str = ""
) -> tuple[str, ...]:
    """Return what to preload for a model file: modules, and functions as `module:function`.

    The device is named, such as `cpu` or `cuda:1`; so may be the engine, else it is the first that
    is installed.
    """
    kind = device.partition(":")[0]
    rows = [row for row in engines_for(path.name, kind) if engine in {"", row.name}]
    imports = list(DEVICES.get(kind, ()))
    if rows:
        row = preferred(rows, precision)
        imports += [row.libraries[0], row.opener.partition(":")[0]]
        imports += [PROGRAM] if path.suffix == ".pt2" else []
    return tuple(dict.fromkeys(imports))


def language_imports(device: str, engine: str) -> tuple[str, ...]:
    """Return what to preload for a language model: the engines that may compute it.

    Device and engine are as in `OpenLanguage`.
    """
    rows = language_engines(device.partition(":")[0], engine)
    return tuple(name for row in rows for name in (row.name, row.opener.partition(":")[0]))


def preload(imports: Iterable[str]) -> None:
    """Import modules and call functions; what fails here fails again, and is told, at a load."""
    spin_briefly()
    for name in imports:
        module, _, function = name.partition(":")
        try:
            with importing():
                imported = importlib.import_module(module)
            if function:
                getattr(imported, function)()
        except (ImportError, OSError, RuntimeError) as error:
            log.info("%s cannot be preloaded: %s", name, reason(error))
