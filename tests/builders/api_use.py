"""What a source file uses of a library: dotted names, and how they are called."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, order=True)
class Use:
    """One name, below a root: `Stream`, `matmul.allow_hf32`.

    Attributes:
        positional, keywords: of the call; -1 and () where it is not called.
    """

    name: str
    positional: int = -1
    keywords: tuple[str, ...] = ()


def uses(path: Path, root: str) -> set[Use]:
    """Return all uses of names below a dotted root in a Python file."""
    tree = ast.parse(path.read_text())
    called: set[int] = set()
    found: set[Use] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (name := below(node.func, root)):
            called.update(id(part) for part in ast.walk(node.func))
            keywords = tuple(sorted(keyword.arg or "**" for keyword in node.keywords))
            found.add(Use(name, len(node.args), keywords))
    inner = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    for node in ast.walk(tree):
        if id(node) not in called and id(node) not in inner and (name := below(node, root)):
            found.add(Use(name))
    return found


def below(node: ast.AST, root: str) -> str:
    """Return the dotted name of an expression without its root; "" if it has another one."""
    dotted = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
    return dotted[len(root) + 1 :] if dotted.startswith(f"{root}.") else ""
