"""The fake host module, under the name that the real one has in a stub."""

import importlib.util
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

FAKE = Path(__file__).resolve().parents[2] / "fakes" / "triton_python_backend_utils.py"


@pytest.fixture(autouse=True)
def pb_utils(monkeypatch):
    """A fresh fake; `ge_backend.host` is imported anew against it."""
    spec = importlib.util.spec_from_file_location("triton_python_backend_utils", FAKE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", module)
    for name in [name for name in sys.modules if name.startswith("ge_backend.host")]:
        monkeypatch.delitem(sys.modules, name)
    return module


@pytest.fixture(autouse=True)
def restored():
    """The package's logger is as it was, whatever was opened: an instance takes it for itself."""
    logger = logging.getLogger("ge_backend")
    handlers, level, propagate = logger.handlers, logger.level, logger.propagate
    yield
    logger.handlers, logger.propagate = handlers, propagate
    logger.setLevel(level)


@pytest.fixture
def shared(monkeypatch):
    """Returns a function that says what shared memory has left, and what the stub's region has."""

    def has(*, left, free, blocks=1):
        state = SimpleNamespace(f_blocks=blocks, f_bavail=left, f_frsize=1)
        monkeypatch.setattr(os, "statvfs", lambda _: state)
        inside = SimpleNamespace()
        if free is not None:
            inside.shared_memory = SimpleNamespace(free_memory=lambda: free)
        monkeypatch.setitem(sys.modules, "c_python_backend_utils", inside)

    return has
