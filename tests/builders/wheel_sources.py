"""Names in the sources of a wheel that cannot be imported here, with their parameters."""

from __future__ import annotations

import ast
import functools
import zipfile
from pathlib import Path


class WheelSources:
    """Python sources in a wheel, parsed and never run.

    A name is found where a module defines it, or where it imports it from, star imports included.
    """

    def __init__(self, wheel: Path) -> None:
        self._archive = zipfile.ZipFile(wheel)
        self._files = set(self._archive.namelist())

    def find(self, module: str, dotted: str) -> ast.AST:
        """Return the definition of a name; for an attribute of an instance, that of its class.

        Raises:
            LookupError: the module has no such name.
        """
        name, _, attribute = dotted.partition(".")
        place, node = self._definition(module, name)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):  # an instance
            place, node = self._evaluate(place, node.value.func)
        if attribute and attribute not in ast.unparse(node):
            raise LookupError(f"{module}.{name} has no {attribute}")
        return node

    def parameters(self, module: str, dotted: str) -> tuple[list[str], bool]:
        """Return a callable's parameters without `self`, and whether it takes any keyword."""
        node = self.find(module, dotted)
        if isinstance(node, ast.ClassDef):
            makers = {f.name: f for f in node.body if isinstance(f, ast.FunctionDef)}
            maker = makers.get("__init__") or makers.get("__new__")
            if maker is None:
                return [], False
            names, anything = _parameters(maker)
            return names[1:], anything
        if isinstance(node, ast.FunctionDef):
            return _parameters(node)
        raise LookupError(f"{module}.{dotted} is nothing that can be called")

    def text(self, module: str) -> str:
        """Return the source of a module."""
        return self._archive.read(self._path(module)).decode()

    def _definition(self, module: str, name: str) -> tuple[str, ast.AST]:
        for node in reversed(self._tree(module).body):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
                return module, node
            if isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets):
                return module, node
            if isinstance(node, ast.ImportFrom):
                source = self._source(module, node)
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self._imported(source, alias.name)
                    if alias.name == "*" and name in self._exported(source):
                        return self._definition(source, name)
        raise LookupError(f"{module} has no {name}")

    def _imported(self, source: str, name: str) -> tuple[str, ast.AST]:
        if f"{source}.{name}".replace(".", "/") + "/__init__.py" in self._files:
            return source, self._tree(f"{source}.{name}")
        return self._definition(source, name)

    def _evaluate(self, module: str, node: ast.expr) -> tuple[str, ast.AST]:
        """Return the class that `sub_module.Class` or `Class` means."""
        first, _, rest = ast.unparse(node).partition(".")
        if rest:
            return self._definition(f"{module}.{first}", rest)
        return self._definition(module, first)

    def _exported(self, module: str) -> list[str]:
        for node in self._tree(module).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                return list(ast.literal_eval(node.value))
        return []

    def _source(self, module: str, node: ast.ImportFrom) -> str:
        """Return the module that a `from … import` names; `torchair` lies in a folder."""
        if node.level:
            package = module if self._path(module).endswith("__init__.py") else parent(module)
            for _ in range(node.level - 1):
                package = parent(package)
            return f"{package}.{node.module}" if node.module else package
        named = node.module or ""
        return (
            named.replace("torchair", "torch_npu.dynamo.torchair", 1)
            if (named.partition(".")[0] == "torchair")
            else named
        )

    def _path(self, module: str) -> str:
        base = module.replace(".", "/")
        for path in (f"{base}/__init__.py", f"{base}.py"):
            if path in self._files:
                return path
        raise LookupError(f"the wheel has no {module}")

    @functools.lru_cache(maxsize=64)  # noqa: B019 - as long-lived as the tests of one file
    def _tree(self, module: str) -> ast.Module:
        return ast.parse(self.text(module))


def parent(module: str) -> str:
    return module.rpartition(".")[0]


def _parameters(function: ast.FunctionDef) -> tuple[list[str], bool]:
    given = function.args
    names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return names, given.kwarg is not None
