"""Each row of the page on libraries' behaviour names tests, or scripts, that there are."""

import re

import pytest

from builders.pages import ROOT

PAGE = (ROOT / "docs" / "behaviour.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ")]
BODY = [row for row in ROWS if not row.startswith(("| one would expect", "| ---"))]
HELD = re.compile(r"`([^`]+)`")
SCRIPTS = sorted(path for path in (ROOT / "findings").glob("*.sh"))
FINDINGS = [path for path in SCRIPTS if path.name not in ("lib.sh", "run.sh")]
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
HEAD = ("Expected", "Happens", "Versions", "Source", "Guess")


@pytest.mark.parametrize("row", BODY)
def test_a_row_names_what_holds_it(row):
    """A test function in its file, or a script; and it has all five columns."""
    cells = row.strip("| ").split(" | ")
    assert len(cells) == 5, row
    names = HELD.findall(cells[-1])
    assert names, row
    for name in names:
        file, _, function = name.partition("::")
        if not function:
            assert ROOT / "findings" / f"{file}.sh" in FINDINGS, name
            continue
        defined = re.compile(rf"^def {function}\(", re.MULTILINE)
        files = [path for path in TESTS if path.stem == file and defined.search(path.read_text())]
        assert len(files) == 1, name


@pytest.mark.parametrize("script", FINDINGS, ids=lambda path: path.stem)
def test_a_script_says_what_it_found_and_is_on_the_page(script):
    """Its head has what one would expect, what happens, versions, source and guess."""
    text = script.read_text()
    assert [word for word in HEAD if f"\n# {word}: " not in text] == []
    assert f"`{script.stem}`" in PAGE
