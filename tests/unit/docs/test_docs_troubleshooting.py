"""Each message in docs/troubleshooting.md that is said to be ours is in the source."""

import ast
import re

import pytest

from builders.pages import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
OURS, THEIRS = PAGE.split("## From Triton itself")
QUOTED = re.findall(r"(?m)^\| `([^`]+)`", OURS)
# A placeholder: `{…}` in the source, `%s` in a line of the log, `…` on the page.
HOLE = "\0"


def literal(node: ast.AST) -> str:
    """Return a string of the source, with its placeholders as holes; "" for anything else."""
    if isinstance(node, ast.Constant):
        text = node.value if isinstance(node.value, str) else ""
        return re.sub(r"%(\.\d+)?[sdrfg]", HOLE, text)
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(part) or HOLE for part in node.values)
    return ""


def literals() -> list[str]:
    """Return every string of the package but those that only stand there, as docstrings do."""
    sources = (ROOT / "backend" / "ge" / "ge_backend").rglob("*.py")
    nodes = [node for path in sources for node in ast.walk(ast.parse(path.read_text()))]
    idle = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    return [text for node in nodes if id(node) not in idle and (text := literal(node))]


@pytest.fixture(scope="module")
def source() -> str:
    """All strings, one per line."""
    return "\n".join(text.replace("\n", " ") for text in literals())


def test_the_page_quotes_messages():
    """The pattern that finds them still does, in every row of its tables."""
    rows = re.findall(r"(?m)^\|(?! ---| message | line )", OURS)
    assert len(QUOTED) == len(rows) > 60


@pytest.mark.parametrize("message", QUOTED)
def test_a_message_is_in_the_source(source, message):
    """In one string, with a placeholder wherever the page has an ellipsis."""
    pattern = re.escape(message).replace("…", HOLE)
    assert re.search(pattern, source)
