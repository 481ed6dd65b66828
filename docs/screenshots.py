"""Write docs/images/top.svg and report.png: what a real server shows under made-up traffic.

`python docs/screenshots.py` starts the server with the text models of model_repository, sends texts
of very different lengths, and takes both pictures. `top.svg` is what `ge-backend top` shows.
`report.png` is the top of the page that `ge-backend report` writes, as headless Chromium shows it;
where there is no browser it is made of the page's pictures, side by side.
"""

from __future__ import annotations

import io
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import tritonclient.grpc as grpcclient
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console
from rich.text import Text

from ge_tools.page.drawing import STYLE, WIDTH_INCHES
from ge_tools.page.page import Picture, pictures, render
from ge_tools.page.recording import Recording, record
from ge_tools.top import screen
from ge_tools.tritonserver import ServerOptions, TritonServer, find_server
from ge_tools.watch.models import model_numbers
from ge_tools.watch.readings import device_lines
from ge_tools.watch.scrape import scrape

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
MODELS = ("tokenizer", "text_encoder", "classifier_head", "text_classifier")
ENSEMBLE = "text_classifier_fused"
CLIENTS = 8
MAX_WORDS = 100
SETTLE_S, TOP_S, REPORT_S = 2.0, 2.0, 6.0
# The left half of the picture; the rest goes to the right.
LEFT = ("Requests", "Lengths and buckets", "Workspace pool")
# Debian's package is `chromium`.
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--virtual-time-budget=5000"),
)
BROWSER_S = 60
SHOWN = (1250, 2300)
DPI, TITLE_INCHES, GAP, PAPER = 75, 0.35, 12, "#E8ECF0"


def main() -> None:
    """Serve, load, take the pictures."""
    with served() as server, traffic(server):
        time.sleep(SETTLE_S)
        text = top(server)
        recording = record(server.metrics, REPORT_S, lambda said: print(said, file=sys.stderr))
    IMAGES.mkdir(exist_ok=True)
    (IMAGES / "top.svg").write_text(terminal(text, "ge-backend top"), encoding="utf-8")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        print(f"none of {', '.join(BROWSERS)} is here: the report is composed", file=sys.stderr)
        compose(recording, IMAGES / "report.png")
    else:
        photograph(program, render(recording), IMAGES / "report.png")


@contextmanager
def served() -> Iterator[TritonServer]:
    """Serve the fused ensemble and its steps, with a workspace pool and percentiles."""
    with tempfile.TemporaryDirectory(prefix="ge-screenshots-") as temporary:
        made, repository = Path(temporary) / "made", Path(temporary) / "models"
        script = ROOT / "model_repository" / "make.py"
        subprocess.run([sys.executable, str(script), "--into", str(made)], check=True)
        for name in (*MODELS, ENSEMBLE):
            shutil.copytree(made / name, repository / name)
        options = ServerOptions(
            repositories=(repository,),
            log_file=Path(temporary) / "server.log",
            environment={"GE_WORKSPACE_POOL": "64MiB"},
            arguments=("--metrics-config=summary_latencies=true",),
        )
        with TritonServer(find_server(), options) as server:
            yield server


@contextmanager
def traffic(server: TritonServer) -> Iterator[None]:
    """Send texts, most of them short, from several clients at once."""
    stop = threading.Event()
    threads = [
        threading.Thread(target=_send, args=(server.grpc, seed, stop)) for seed in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def top(server: TritonServer) -> str:
    """Return what `ge-backend top` shows."""
    before = scrape(server.metrics)
    time.sleep(TOP_S)
    after = scrape(server.metrics)
    return screen(model_numbers(before, after), [], device_lines(before, after))


def terminal(text: str, title: str) -> str:
    """Return a text as the SVG of a terminal, in whatever fixed-width font is there."""
    width = max(map(len, text.splitlines()))
    console = Console(record=True, width=width, file=io.StringIO())
    console.print(Text(text), soft_wrap=True)
    drawn = console.export_svg(title=title, unique_id="top")
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)


def photograph(program: str, page: str, path: Path) -> None:
    """Write what a browser shows of a page, as far down as the picture goes."""
    with tempfile.TemporaryDirectory(prefix="ge-screenshots-") as temporary:
        file, taken = Path(temporary) / "page.html", Path(temporary) / "taken.png"
        file.write_text(page, encoding="utf-8")
        command = [program, *FLAGS, f"--user-data-dir={temporary}/profile"]
        command += [f"--window-size={SHOWN[0]},{SHOWN[1]}", f"--screenshot={taken}", file.as_uri()]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL, timeout=BROWSER_S)
        Image.open(taken).convert("RGB").quantize(64).save(path, optimize=True)


def compose(recording: Recording, path: Path) -> None:
    """Write the pictures of a report, in two columns."""
    found = pictures(recording)
    columns = [
        [_drawn(picture) for picture in found if (picture.title in LEFT) is left]
        for left in (True, False)
    ]
    width = max(image.width for column in columns for image in column)
    height = max(sum(image.height + GAP for image in column) for column in columns)
    page = Image.new("RGB", (2 * width + 3 * GAP, height + GAP), PAPER)
    for index, column in enumerate(columns):
        top_ = GAP
        for image in column:
            page.paste(image, (GAP + index * (width + GAP), top_))
            top_ += image.height + GAP
    page.quantize(64).save(path, optimize=True)


def _drawn(picture: Picture) -> Image.Image:
    """Return a picture below its title, as the page has it."""
    with mpl.rc_context(STYLE):
        figure = Figure(
            figsize=(WIDTH_INCHES, picture.height_inches), dpi=DPI, layout="constrained"
        )
        picture.draw(figure)
        title = Figure(figsize=(WIDTH_INCHES, TITLE_INCHES), dpi=DPI)
        title.text(0.01, 0.35, picture.title, fontsize=13, fontweight="bold")
        parts = [Image.fromarray(_pixels(part)) for part in (title, figure)]
    whole = Image.new("RGB", (parts[1].width, sum(part.height for part in parts)), "white")
    whole.paste(parts[0], (0, 0))
    whole.paste(parts[1], (0, parts[0].height))
    return whole


def _pixels(figure: Figure) -> Any:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _send(address: str, seed: int, stop: threading.Event) -> None:
    drawn = random.Random(seed)  # noqa: S311 - traffic, not a secret
    with grpcclient.InferenceServerClient(address) as client:
        while not stop.is_set():
            count = min(MAX_WORDS, max(1, round(drawn.lognormvariate(2.2, 0.9))))
            given = grpcclient.InferInput("text", [1, 1], "BYTES")
            given.set_data_from_numpy(np.array([["rain " * count]], dtype=object))
            client.infer(ENSEMBLE, [given])


if __name__ == "__main__":
    main()
