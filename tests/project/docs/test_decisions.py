"""What the page of decisions says of the code holds for it."""

import ast
import re

from builders.pages import ROOT
from builders.roots import shown, sources

PAGE = (ROOT / "docs" / "decisions.md").read_text()
BOUNDARIES = PAGE.partition("\n## 0005 ")[2].partition("\n## ")[0]


def handlers(name):
    """Return (file, handler) for each place of the package that catches errors of this type."""
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ExceptHandler) and getattr(node.type, "id", "") == name:
                yield shown(path), node


def test_unforeseen_errors_are_caught_where_the_decision_says():
    """Decision 0005 names every `except Exception`, and none that is not there."""
    rows = re.findall(r"(?m)^\| `([\w/.]+)` \| (\d+) \|", BOUNDARIES)
    there = [file for file, _ in handlers("Exception")]
    assert {file: int(times) for file, times in rows} == {f: there.count(f) for f in there}


def test_base_exceptions_go_on():
    """Who catches everything, to clean up, raises it again."""
    found = list(handlers("BaseException"))
    assert len(found) > 5
    for file, handler in found:
        assert any(isinstance(node, ast.Raise) for node in ast.walk(handler)), (
            f"{file}:{handler.lineno}"
        )
