"""Each message in the documentation's tables that is said to be ours is in the source."""

import ast
import re

import pytest

from builders.pages import ROOT
from builders.roots import sources

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
OURS, THEIRS = PAGE.split("## From Triton itself")
QUOTED = re.findall(r"(?m)^\| `([^`]+)`", OURS)
# Tables of messages on other pages, by what their first column is called.
TABLES = re.compile(r"(?m)^\| (?:message at load|what it says) \|.*\n((?:\|.*\n)+)")
ELSEWHERE = [
    quoted
    for page in ("docs/devices.md", "docs/compile.md")
    for table in TABLES.findall((ROOT / page).read_text())
    for quoted in re.findall(r"(?m)^\| `([^`]+)` \|", table)
    if not re.fullmatch(r"E[A-Z]?\d+", quoted)  # a code of CANN's compiler
]
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
    nodes = [node for path in sources() for node in ast.walk(ast.parse(path.read_text()))]
    idle = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    return [text for node in nodes if id(node) not in idle and (text := literal(node))]


@pytest.fixture(scope="module")
def source() -> str:
    """All strings, one per line."""
    return "\n".join(text.replace("\n", " ") for text in literals())


def test_the_page_quotes_messages():
    """The pattern that finds them still does, in every row of its tables."""
    rows = re.findall(r"(?m)^\|(?! ---| message | line )", OURS)
    assert len(QUOTED) == len(rows) > 12


@pytest.mark.parametrize("message", QUOTED)
def test_a_message_is_in_the_source(source, message):
    """In one string, with a placeholder wherever the page has an ellipsis."""
    pattern = re.escape(message).replace("…", HOLE)
    assert re.search(pattern, source)


@pytest.mark.parametrize("message", ELSEWHERE)
def test_a_message_of_another_page_is_in_the_source(source, message):
    """The names and numbers of its example may be placeholders."""
    known = re.split(r"…|\w+:\d+|model\.om|\d+", message)
    assert len(ELSEWHERE) > 7
    assert re.search(HOLE.join(map(re.escape, known)).strip(HOLE), source)
