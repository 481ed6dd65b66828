"""What the README's own commands install is enough for every command that the README names."""

import ast
import importlib.metadata
import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from builders.pages import ROOT, commands
from builders.roots import ROOTS, sources

DOCS = ROOT / "docs"
# Engines are of the reader's choice, and the host brings its own module.
CHOSEN = {
    *("torch", "torch_npu", "acl", "onnxruntime", "onnxscript"),
    *("tokenizers", "transformers", "safetensors", "gguf", "PIL", "vllm"),
}
HOSTS = {"triton_python_backend_utils"}
# `google` is a namespace: several distributions have a part of it.
OURS = {*ROOTS, "google"}


def installed_by_pip() -> str:
    """Return the extras that the README's `pip install` asks for."""
    (asked,) = {
        match[1]
        for command in commands("README.md")
        if (match := re.fullmatch(r"pip install '\.\[(.+)\]'", command.text))
    }
    return asked


def installed_by_make() -> str:
    """Return the extras that `make demo` installs."""
    return re.search(r"(?m)^EXTRAS_run := (.+)$", (ROOT / "Makefile").read_text())[1]


def needs(name: str) -> list[str]:
    """Return what a distribution requires; nothing of one that is not installed here."""
    try:
        return importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return []


def distributions(extras: str) -> set[str]:
    """Return the names of all that is installed with these extras, as the index normalises them."""
    found: set[str] = set()
    waiting = [("triton-ge-backend", frozenset(extras.split(",")))]
    while waiting:
        name, asked = waiting.pop()
        for text in needs(name):
            needed = Requirement(text)
            wanted = asked or {""}
            if needed.marker and not any(needed.marker.evaluate({"extra": e}) for e in wanted):
                continue
            normal = re.sub(r"[-_.]+", "-", needed.name).lower()
            if normal not in found:
                found.add(normal)
                waiting.append((needed.name, frozenset(needed.extras)))
    return found


def imported(path: Path) -> set[str]:
    """Return the top-level modules that a file imports from outside the standard library."""
    tree = ast.parse(path.read_text())
    names = {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    names |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    return {name.split(".")[0] for name in names} - set(sys.stdlib_module_names)


@pytest.mark.parametrize("extras", [installed_by_pip(), installed_by_make()])
def test_a_command_finds_every_library_that_it_imports(extras):
    """No file of the package imports what these extras leave out, engines aside."""
    there = distributions(extras)
    of = importlib.metadata.packages_distributions()
    for path in sources():
        for module in imported(path) - CHOSEN - HOSTS - OURS:
            brought = {re.sub(r"[-_.]+", "-", name).lower() for name in of[module]}
            assert brought & there, f"{path.name} imports {module}, which [{extras}] leaves out"


def test_an_error_names_the_extra_for_people():
    """Each `pip install` in a message of the package asks for extras that pyproject.toml has."""
    known = importlib.metadata.metadata("triton-ge-backend").get_all("Provides-Extra")
    told = {
        name
        for path in sources()
        for name in re.findall(r"pip install 'triton-ge-backend\[([\w,]+)\]'", path.read_text())
    }
    assert "tools" in told
    assert told <= set(known)


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{p.name}" for p in DOCS.glob("*.md"))])
def test_a_page_names_extras_that_there_are(page):
    """In its commands and in its text."""
    known = importlib.metadata.metadata("triton-ge-backend").get_all("Provides-Extra")
    text = (ROOT / page).read_text()
    told = re.findall(r"triton-ge-backend\[([\w,]+)\]", text) + re.findall(r"extra `(\w+)`", text)
    assert {extra for names in told for extra in names.split(",")} <= set(known)
