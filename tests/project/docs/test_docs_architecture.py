"""The page that shows the way through the code names what is there, and all of it."""

import ast
import re

import pytest

from builders.pages import ROOT
from builders.roots import BACKEND, ROOTS, source

PAGE = (ROOT / "docs" / "architecture.md").read_text()
STEPS = PAGE.partition("## Roots and rooms")[0]
PACKAGES = PAGE.partition("## Roots and rooms")[2].partition("\n## ")[0]
# `host/backend.py: execute`, or a file alone.
PLACE = re.compile(r"`([a-z_]+(?:/[a-z_]+)*\.py)(?:: ([\w.]+))?`")
PLACES = sorted({(m[1], m[2] or "") for m in PLACE.finditer(PAGE)})


def defined(path):
    """Return the names that a file defines, those of its classes' methods with and without them."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        for inner in getattr(node, "body", []) if isinstance(node, ast.ClassDef) else []:
            if isinstance(inner, ast.FunctionDef):
                names |= {inner.name, f"{node.name}.{inner.name}"}
    return names


@pytest.mark.parametrize(("file", "name"), PLACES)
def test_what_is_named_is_there(file, name):
    """A finger that follows the page finds each file and its function."""
    assert source(file).is_file()
    assert not name or name in defined(source(file))


def test_every_step_of_a_request_names_its_function():
    """Eight steps, each with the place in the code where it is made."""
    steps = re.split(r"(?m)^\d\. ", STEPS)[1:]
    assert len(steps) == 8
    assert all(any(m[2] for m in PLACE.finditer(step)) for step in steps)


def test_every_package_has_its_line():
    """What lies beside the words is said of every folder, and of nothing else."""
    named = set(re.findall(r"(?m)^\| ((?:`[a-z_]+/`[ ]?)+)", PACKAGES))
    rows = {folder for row in named for folder in re.findall(r"`([a-z_]+)/`", row)}
    rooms = {path.name for path in ROOTS[BACKEND].iterdir() if (path / "__init__.py").is_file()}
    assert rows == rooms | ROOTS.keys()
