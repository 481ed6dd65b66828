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
HEAD = ("Expected", "Happens", "Versions", "Source", "Guess")


@pytest.mark.parametrize("row", BODY)
def test_a_row_names_what_holds_it(row):
    """A test function in its file, or a script; and it has all five columns."""
    cells = row.strip("| ").split(" | ")
    assert len(cells) == 5, row
    names = HELD.findall(cells[-1])
    assert names, row
    for name in names:
        path, _, function = name.partition("::")
        assert (ROOT / path).is_file(), name
        if function:
            assert re.search(rf"^def {function}\(", (ROOT / path).read_text(), re.MULTILINE), name
        else:
            assert ROOT / path in FINDINGS, name


@pytest.mark.parametrize("script", FINDINGS, ids=lambda path: path.stem)
def test_a_script_says_what_it_found_and_is_on_the_page(script):
    """Its head has what one would expect, what happens, versions, source and guess."""
    text = script.read_text()
    assert [word for word in HEAD if f"\n# {word}: " not in text] == []
    assert f"`findings/{script.name}`" in PAGE
