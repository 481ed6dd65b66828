"""Comments, docstrings and pages say what does something, in words that a newcomer knows."""

import ast
import io
import re
import tokenize

import pytest

from builders.pages import PAGES, ROOT

WORDS = re.compile(
    r"\b(nobody|anybody|somebody|whoever|told\s+of|let\s+go\s+of|so\s+many|as\s+ever"
    r"|without\s+a\s+word|lonely|rehears\w*|heal|heals|healed)\b",
    re.IGNORECASE,
)
ROOTS = ("backend", "frontend", "tools/ge_tools", "client_examples")
SOURCES = [path for root in ROOTS for path in sorted((ROOT / root).rglob("*.py"))]


def prose(source: str) -> str:
    """Return the comments and docstrings of a file, one after the other."""
    comments = [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    docstrings = [
        ast.get_docstring(node) or ""
        for node in ast.walk(ast.parse(source))
        if isinstance(node, documented)
    ]
    return "\n".join(comments + docstrings)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_none_of_the_words(page):
    """Each has a plain one: no one does something, but something is done or not done."""
    assert WORDS.findall((ROOT / page).read_text()) == []


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_has_none_of_the_words_in_its_prose(path):
    """In comments and docstrings; what a program prints or parses is not looked at."""
    assert WORDS.findall(prose(path.read_text())) == []


def test_the_words_are_found_in_prose_alone():
    """In a docstring and a comment, over the end of a line too; not in other strings."""
    source = '"""Of so\nmany."""\nx = "nobody"  # whoever reads it\n'
    assert WORDS.findall(prose(source)) == ["whoever", "so\nmany"]
