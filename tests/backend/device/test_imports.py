"""Imports of what several models share, by several threads at once."""

import ast
import importlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from builders.pages import ROOT
from ge_backend.device.imports import importing

PACKAGE = ROOT / "backend/ge/ge_backend"
# What several models' threads run side by side.
SHARED = ("device", "engines")
# What a command runs alone, in a process of its own.
ALONE = PACKAGE / "engines/torch/encoder_export.py"
SELF_REPLACING = """
import sys, time, types
time.sleep(0.2)
sys.modules[__name__] = types.SimpleNamespace(name="lazy", __spec__=__spec__)
"""


def test_threads_get_the_object_that_a_module_puts_in_its_place(tmp_path, monkeypatch):
    """As transformers does at the end of its import; one that waited would get the first object."""
    (tmp_path / "replaces_itself.py").write_text(SELF_REPLACING)
    monkeypatch.syspath_prepend(tmp_path)

    def imported(_):
        with importing():
            import replaces_itself

        return replaces_itself.name

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(imported, range(4))) == ["lazy"] * 4


def test_what_is_imported_may_import_in_its_turn():
    """The thread that imports is not kept from it."""
    with importing(), importing():
        assert importlib.import_module("colorsys")


def test_every_import_within_a_function_is_one_threads_alone():
    """Also those by name: a library's lazy names are imported like modules."""
    files = [path for room in SHARED for path in sorted((PACKAGE / room).rglob("*.py"))]
    files.remove(ALONE)
    assert [each for path in files for each in _unguarded(path)] == []


def test_an_unguarded_import_is_found(tmp_path):
    """In a function, by statement or by name, and not where `importing` holds."""
    path = tmp_path / "module.py"
    path.write_text(
        "import os\n"
        "def one():\n    import torch\n"
        "def two():\n    with importing():\n        import torch\n"
        "def three():\n    return importlib.import_module('torch')\n"
    )
    assert [line for _, line in _unguarded(path)] == [3, 8]


def _unguarded(path: Path):
    """Return the places of a file where something is imported that other threads may import."""
    found = []

    def visit(node, *, lazy):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.With) and "importing()" in map(ast.unparse, child.items):
                continue
            statement = isinstance(child, (ast.Import, ast.ImportFrom))
            called = isinstance(child, ast.Call) and ast.unparse(child.func) in {
                "importlib.import_module",
                "pkgutil.resolve_name",
            }
            if lazy and (statement or called):
                found.append((path.name, child.lineno))
            visit(child, lazy=lazy or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)))

    visit(ast.parse(path.read_text(encoding="utf-8")), lazy=False)
    return found
