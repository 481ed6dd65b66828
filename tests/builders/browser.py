"""A page as a real browser shows it: headless Chromium, where it is installed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

# Debian's package is `chromium`.
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--enable-logging=stderr"),
)
SCHEMES = {"light": "1", "dark": "0"}
LIMIT_S = 60
# How a text stands out: `ratio` of two colours, and the colour `behind` an element.
CONTRAST = """
const ratio = (a, b) => {
  const light = (text) => {
    const parts = text.match(/[\\d.]+/g).slice(0, 3).map((part) => {
      const share = part / 255;
      return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
};
const behind = (node) => {
  for (; node; node = node.parentElement) {
    const colour = getComputedStyle(node).backgroundColor;
    if (!colour.endsWith(", 0)") && colour !== "transparent") return colour;
  }
  return "rgb(255, 255, 255)";
};
"""
# Tells what can only be known once the page is laid out; it is added to a copy of the page.
ASK = (
    f"""
<script>
{CONTRAST}"""
    """
addEventListener("load", () => {
  const texts = [...document.querySelectorAll("h1, h2, p, th, td, svg text")]
    .filter((node) => node.textContent.trim());
  const root = document.documentElement;
  const told = {
    width: innerWidth,
    overflow: root.scrollWidth - innerWidth,
    background: getComputedStyle(document.body).backgroundColor,
    pictures: [...document.querySelectorAll("svg")].map((svg) => {
      const box = svg.getBoundingClientRect();
      return [box.width, box.height];
    }),
    smallest: Math.min(...[...document.querySelectorAll("svg text")]
      .filter((text) => text.textContent.trim())
      .map((text) => {
        const { a, b } = text.getScreenCTM();  // b: it may be turned
        return Math.hypot(a, b) * parseFloat(getComputedStyle(text).fontSize);
      })),
    contrast: Math.min(...texts.map((node) => {
      const style = getComputedStyle(node);
      return ratio(node.closest("svg") ? style.fill : style.color, behind(node));
    })),
  };
  document.documentElement.setAttribute("data-told", JSON.stringify(told));
});
</script>
"""
)


@dataclass(frozen=True)
class Look:
    """What a browser showed.

    Attributes:
        width: of the window, in pixels of the page.
        overflow: by how much the page is wider than that.
        background: of the page.
        pictures: [width, height] of each.
        smallest: the height of the smallest letters in pictures, in pixels.
        contrast: of the text that stands out least; 1 is invisible, 21 black on white.
        console: what the browser's console said.
    """

    width: int
    overflow: int
    background: str
    pictures: list[list[float]]
    smallest: float
    contrast: float
    console: list[str]


def browser() -> str | None:
    """Return the browser of this machine, if it has one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def look(program: str, page: str, folder: Path, *, width: int, scheme: str) -> Look:
    """Show a page in a window of this width, for a reader who likes it light or dark."""
    file = folder / "page.html"
    file.write_text(page.replace("</body>", f"{ASK}</body>"), encoding="utf-8")
    # A window has a least width, a frame has none; its media queries see its own width.
    frame = folder / "frame.html"
    frame.write_text(
        f'<!DOCTYPE html><style>body {{ margin: 0 }}</style><iframe src="{file.name}" width="{width}" '
        'height="900" style="border: 0"></iframe><script>addEventListener("load", () => {'
        'const told = document.querySelector("iframe").contentDocument.documentElement;'
        "document.body.dataset.told = told.dataset.told; });</script>",
        encoding="utf-8",
    )
    command = [
        *(program, *FLAGS, f"--user-data-dir={folder / 'profile'}"),
        *("--allow-file-access-from-files", "--window-size=1600,1000"),
        f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
        *("--virtual-time-budget=5000", "--dump-dom", frame.as_uri()),
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=LIMIT_S)
    (told,) = re.findall(r'<body data-told="([^"]*)"', done.stdout)
    console = re.findall(r":CONSOLE[^\]]*\] (.*)", done.stderr)
    return Look(console=console, **json.loads(told.replace("&quot;", '"')))
