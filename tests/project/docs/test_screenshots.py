"""The script that takes the pictures, without the server that it takes them of."""

import importlib.util
import re
from pathlib import Path

import pytest
from PIL import Image

from builders.browser import browser
from builders.recordings import recording
from ge_tools.page.page import render

DOCS = Path(__file__).resolve().parents[3] / "docs"
MAX_BYTES = 300_000


@pytest.fixture(scope="module")
def screenshots():
    spec = importlib.util.spec_from_file_location("screenshots", DOCS / "screenshots.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_terminal_loads_no_fonts_from_elsewhere(screenshots):
    """Whoever looks at the README is not told to anybody."""
    drawn = screenshots.terminal("model  req/s\n<b>      5.0", "ge-backend top")
    assert "&lt;b&gt;" in drawn
    assert "url(" not in re.sub(r"url\(#[^)]*\)", "", drawn)
    assert "@font-face" not in drawn


def test_the_report_is_photographed_by_a_browser(screenshots, tmp_path):
    """As wide as the window; there is more than paper on it."""
    program = browser()
    if program is None:
        pytest.skip("no browser here: apt install chromium")
    path = tmp_path / "report.png"
    screenshots.photograph(program, render(recording()), path)
    taken = Image.open(path)
    assert taken.size == screenshots.SHOWN
    assert len(taken.convert("RGB").getcolors(1 << 16)) > 16
    assert path.stat().st_size < MAX_BYTES


def test_the_report_is_composed_of_its_pictures(screenshots, tmp_path):
    """Two columns, in a file that is quick to load."""
    path = tmp_path / "report.png"
    screenshots.compose(recording(), path)
    width, height = Image.open(path).size
    assert width > 1200
    assert height > 600
    assert path.stat().st_size < MAX_BYTES


@pytest.mark.parametrize(
    "name", ["top.svg", "report.png", "fused_timeline.png", "chat.png", "chat_phone.png"]
)
def test_the_pictures_are_there_and_small(name):
    """The README and the docs show them."""
    assert 1000 < (DOCS / "images" / name).stat().st_size < MAX_BYTES
