"""The demo: `python -m demo`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.text import Text

import demo
from demo import chat_model
from demo.chats import chat, figures_line, write_chat_model
from demo.counters import wait_for
from demo.encoder import TOKENIZER_FILE, load_tokenizer, prepare, tokenise
from demo.ensemble import ENSEMBLE, embed, write_ensemble
from demo.progress import step
from demo.repository import ServedModel, served_models, write_repository
from demo.sentences import PAGE
from demo.startup import shown_startup
from demo.tables import Outcome, neighbours_table, traffic_table
from demo.traffic import Load, send
from demo.truth import largest_difference, nearest, unpadded
from ge_backend.errors import GeError
from ge_backend.tensors import Array
from ge_openai.options import FrontError, FrontOptions
from ge_tools.openai import open_front
from ge_tools.tritonserver import ServerOptions, TritonServer, find_server

CACHES = Path(__file__).resolve().parent.parent / ".cache"


def main(arguments: Sequence[str]) -> int:
    """Run the demo; return 0, 1 where a result is wrong or the server fails, 130 after ^C."""
    options = _parse(arguments)
    console = Console()
    # Stopped from outside, it ends as after ^C: by leaving the blocks that own things.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with _asked_directly():
            right = _run(options, console)
    except KeyboardInterrupt:
        console.print("stopped")
        return 130
    except (GeError, FrontError) as error:
        console.print(Text(f"failed: {error}", style="red"), soft_wrap=True)
        return 1
    return 0 if right else 1


@contextmanager
def _asked_directly() -> Iterator[None]:
    """Have the demo's own server asked by no proxy of the environment; downloads go by it."""
    said = os.environ.get("no_proxy")
    others = said or os.environ.get("NO_PROXY", "")
    os.environ["no_proxy"] = f"{others},127.0.0.1" if others else "127.0.0.1"
    try:
        yield
    finally:
        if said is None:
            del os.environ["no_proxy"]
        else:
            os.environ["no_proxy"] = said


def _run(options: argparse.Namespace, console: Console) -> bool:
    """Return whether every embedding of every model was right."""
    console.rule("all-MiniLM-L6-v2 and SmolLM2-135M-Instruct")
    encoder = prepare(CACHES / "encoder", console)
    checkpoint = chat_model.prepare(CACHES / "chat_model", console)
    rows = tokenise([sentence.text for sentence in PAGE], load_tokenizer())
    truth = unpadded(encoder.onnx, rows)
    models = served_models(encoder)
    load = Load(rounds=options.rounds, concurrency=options.concurrency)
    with tempfile.TemporaryDirectory(prefix="ge-demo-") as folder:
        root = Path(folder)
        write_repository(root / "models", models)
        write_ensemble(root / "models", TOKENIZER_FILE, models[0].name)
        write_chat_model(root / "models", checkpoint)
        console.rule("the real Triton server")
        with _started(root, console) as server:
            outcomes = [_measure(server, model, rows, truth, load, console) for model in models]
            difference = _difference_of_texts(server, truth, console)
            _show(outcomes, console)
            console.rule("chats with SmolLM2-135M-Instruct")
            line = figures_line(chat(server.grpc, checkpoint, console))
            console.print(f"\n{line}", soft_wrap=True)
            if options.keep:
                _wait(server, console)
    if not options.keep:
        console.print("\nnext: make demo ARGS=--keep serves on, with a page to chat")
        console.print("      docs/tutorial.md goes from a file of yours to a tuned, watched model")
    return all(outcome.right for outcome in outcomes) and difference <= models[0].tolerance


@contextmanager
def _started(root: Path, console: Console) -> Iterator[TritonServer]:
    """Run a server on `root/models` while the block runs; its output goes to `root/server.log`."""
    log = root / "server.log"
    options = ServerOptions(repositories=(root / "models",), log_file=log)
    server = TritonServer(find_server(), options)
    try:
        with shown_startup(log, console):
            server.start()
        yield server
    finally:
        with console.status("stopping the server …"):
            server.stop()


def _measure(
    server: TritonServer,
    model: ServedModel,
    rows: Sequence[Array],
    truth: Array,
    load: Load,
    console: Console,
) -> Outcome:
    """Send the page to one model and compare every reply with the truth."""
    before = wait_for(server.metrics, model.name, requests=0)
    requests = len(rows) * load.rounds
    start = time.monotonic()
    with step(console, f"{model.title}: {requests} requests, {load.concurrency} at a time"):
        replies = send(server.grpc, model.name, rows, load)
    wall_s = time.monotonic() - start
    after = wait_for(server.metrics, model.name, requests=before.requests + requests)
    return Outcome(
        model=model,
        replies=replies,
        counters=after.since(before),
        wall_s=wall_s,
        difference=largest_difference(replies, truth),
    )


def _difference_of_texts(server: TritonServer, truth: Array, console: Console) -> float:
    """Send the page as texts to the ensemble; return how far an answer is from the truth."""
    with step(console, f"{ENSEMBLE}: the page as texts, {len(PAGE)} of them"):
        embeddings = embed(server.grpc, [sentence.text for sentence in PAGE])
    difference = float(np.abs(embeddings - truth).max())
    console.print(f"  texts in, largest difference from the unpadded truth: {difference:.1e}")
    return difference


def _show(outcomes: Sequence[Outcome], console: Console) -> None:
    """Print the neighbours that the first model's answers give, and all models' figures."""
    answers = {reply.index: reply.embedding for reply in outcomes[0].replies}
    embeddings = np.stack([answers[row] for row in range(len(PAGE))])
    best, similarity = nearest(embeddings)
    console.print(neighbours_table(PAGE, best, similarity, width=console.width))
    console.print(traffic_table(outcomes))
    for outcome in outcomes:
        if not outcome.right:
            console.print(
                f"[bold red]{outcome.model.name}: an embedding differs by {outcome.difference:.1e} "
                f"from the unpadded truth; at most {outcome.model.tolerance:.0e} is allowed"
            )


def _wait(server: TritonServer, console: Console) -> None:
    """Leave the server running until ^C, with OpenAI's API in front of it."""
    options = FrontOptions(url=server.grpc, metrics=server.metrics, port=0)
    with open_front(options) as front:
        console.print(f"gRPC {server.grpc}  HTTP {server.http}  {server.metrics}")
        console.print(f"OpenAI's API {front.url}/v1, with a page to try it: {front.url}")
        console.print("the server runs until ^C")
        signal.pause()


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m demo", description=demo.__doc__)
    parser.add_argument("--rounds", type=_positive, default=8, help="how often the page is sent")
    parser.add_argument("--concurrency", type=_positive, default=32, help="requests in flight")
    parser.add_argument("--keep", action="store_true", help="leave the server running until ^C")
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up")
    return int(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
