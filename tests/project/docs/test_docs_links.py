"""Links between pages, and from pages to files, lead somewhere."""

import re
import string

import pytest

from builders.pages import FENCE, PAGES, ROOT

LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")
LINKS = [
    (page, target)
    for page in (*PAGES, "CHANGELOG.md")
    for target in LINK.findall(FENCE.sub("", (ROOT / page).read_text()))
]


def anchors(page: str) -> set[str]:
    """Return the anchors that GitHub gives a page's headings: `errors`, the next one `errors-1`."""
    kept = string.ascii_lowercase + string.digits + " -_"
    seen: dict[str, int] = {}
    found = set()
    for heading in re.findall(r"(?m)^#+ (.*)$", FENCE.sub("", page)):
        name = "".join(c for c in heading.lower() if c in kept).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if name in seen else name)
        seen[name] = seen.get(name, 0) + 1
    return found


def test_pages_have_links():
    """The pattern that finds them still does."""
    assert len(LINKS) > 80


@pytest.mark.parametrize("page", PAGES)
def test_the_readme_links_every_page(page):
    """Nothing has to be found by looking through folders."""
    assert page == "README.md" or ("README.md", page) in LINKS


@pytest.mark.parametrize(("page", "target"), LINKS)
def test_a_link_leads_somewhere(page, target):
    """To a file or folder, and to one of its headings if the link names one."""
    path, _, anchor = target.partition("#")
    file = (ROOT / page).parent / path if path else ROOT / page
    assert file.exists()
    assert not anchor or anchor in anchors(file.read_text())
