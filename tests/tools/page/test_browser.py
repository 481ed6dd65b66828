"""The page of `ge-backend report` in a real browser; skipped where there is none."""

import pytest

from builders.browser import browser, look
from builders.recordings import recording
from ge_tools.page.page import pictures, render

MIN_LETTERS = 8.0
# For text, by the Web Content Accessibility Guidelines, level AA.
MIN_CONTRAST = 4.5


@pytest.fixture(scope="module", params=["light", "dark"])
def scheme(request):
    """What the reader's desktop is set to."""
    return request.param


@pytest.fixture(scope="module", params=[400, 1400])
def shown(request, scheme, tmp_path_factory):
    """The page on a phone and on a desk."""
    program = browser()
    if program is None:
        pytest.skip("no browser here: apt install chromium")
    folder = tmp_path_factory.mktemp("browser")
    return look(program, render(recording()), folder, width=request.param, scheme=scheme)


def test_the_console_says_nothing(shown):
    """No error, no warning."""
    assert shown.console == []


def test_the_page_is_as_wide_as_its_window(shown):
    """What is wider scrolls inside its own card."""
    assert shown.width in {400, 1400}
    assert shown.overflow <= 0


def test_all_pictures_are_there(shown):
    """Each as large as it was drawn to be."""
    assert len(shown.pictures) == len(pictures(recording()))
    assert all(width > 300 and height > 50 for width, height in shown.pictures)


def test_everything_can_be_read(shown):
    """Letters in pictures are large enough, and all text stands out from what is behind it."""
    assert shown.smallest >= MIN_LETTERS
    assert shown.contrast >= MIN_CONTRAST


def test_light_and_dark_are_the_readers_choice(shown, scheme):
    """The page follows it."""
    dark = sum(map(int, shown.background.strip("rgb()").split(","))) < 3 * 128
    assert dark is (scheme == "dark")
