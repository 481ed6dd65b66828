"""Write docs/images/chat.png and chat_phone.png: the page of OpenAI's API, with real models.

`python -m docs.page_screenshots` serves the demo's models, which it downloads once, asks one
question, compares two texts, and photographs the page in headless Chromium: wide by day, narrow by
night.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from pathlib import Path

from demo import chat_model
from demo.__main__ import CACHES
from demo.chats import write_chat_model
from demo.encoder import TOKENIZER_FILE, prepare
from demo.ensemble import write_ensemble
from demo.repository import served_models, write_repository
from docs.driven_browser import NAMES, Browser, find_browser, opened_browser
from PIL import Image
from rich.console import Console

from ge_openai.front import OpenAIFront
from ge_openai.options import FrontOptions
from ge_tools.tritonserver import ServerOptions, TritonServer, find_server

IMAGES = Path(__file__).resolve().parent / "images"
QUESTION = "What is the capital of France? Answer in one sentence."
SHOTS = {"chat.png": (1250, 640, "light"), "chat_phone.png": (400, 740, "dark")}
ANSWER_S = 120.0


def main() -> int:
    """Serve, ask, take the pictures; return 1 where there is no browser."""
    argparse.ArgumentParser(prog="docs.page_screenshots", description=__doc__).parse_args()
    program = find_browser()
    if program is None:
        print(f"none of {', '.join(NAMES)} is here; apt install chromium", file=sys.stderr)
        return 1
    console = Console()
    models = served_models(prepare(CACHES / "encoder", console))[:1]
    checkpoint = chat_model.prepare(CACHES / "chat_model", console)
    with tempfile.TemporaryDirectory(prefix="ge-screenshots-") as folder:
        repository = Path(folder) / "models"
        write_repository(repository, models)
        write_ensemble(repository, TOKENIZER_FILE, models[0].name)
        write_chat_model(repository, checkpoint)
        options = ServerOptions(repositories=(repository,), log_file=Path(folder) / "server.log")
        with TritonServer(find_server(), options) as server:
            front = FrontOptions(url=server.grpc, port=0)
            with OpenAIFront(front) as api, opened_browser(program) as browser:
                for name, (width, height, scheme) in SHOTS.items():
                    browser.show(api.url, width=width, height=height, scheme=scheme)
                    taken = Image.open(io.BytesIO(_used(browser))).convert("RGB")
                    taken.quantize(64).save(IMAGES / name, optimize=True)
    return 0


def _used(browser: Browser) -> bytes:
    """Return the page as it is when a question was answered and two texts were compared."""
    browser.wait("$('chat-model').value && $('embedding-model').value")
    browser.ask(f"$('temperature').value = 0; $('message').value = {QUESTION!r}")
    browser.ask("$('send').click()")
    browser.wait("$('chat-note').textContent.includes('per second')", ANSWER_S)
    browser.ask("$('compare').click()")
    browser.wait("!$('compared').hidden", ANSWER_S)
    return browser.photograph()


if __name__ == "__main__":
    sys.exit(main())
