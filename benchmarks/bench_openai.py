"""What OpenAI's API costs by itself: CPU time of its process per request and per token.

    python -m benchmarks.bench_openai --models .cache/models

Starts the server with one language model of a repository, and the API as a process of its own; asks
it for streams of one token and of many, one after another. The process's CPU time tells both costs.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import time
from pathlib import Path

import psutil

from benchmarks.harness.compare import announce
from benchmarks.harness.servers import Running, serve

__all__ = ["main"]

SHORT = 1


def stream(address: str, model: str, tokens: int) -> None:
    """Ask for a stream and read it to its end."""
    body = {"model": model, "prompt": "once", "max_tokens": tokens, "ignore_eos": True}
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request(
        "POST",
        "/v1/completions",
        json.dumps({**body, "stream": True, "temperature": 0}),
        {"Content-Type": "application/json"},
    )
    text = connection.getresponse().read()
    connection.close()
    if not text.endswith(b"data: [DONE]\n\n"):
        sys.exit(f"the API said: {text.decode()}")


def used(process: psutil.Process, address: str, model: str, tokens: int, count: int) -> float:
    """Return the seconds of CPU that so many streams take of the process."""
    before = process.cpu_times()
    for _ in range(count):
        stream(address, model, tokens)
    after = process.cpu_times()
    return float(after.user + after.system - before.user - before.system)


def measure(options: argparse.Namespace, server: Running) -> None:
    """Print what the API in front of a server costs."""
    command = [sys.executable, "-m", "ge_tools.main", "openai", "--port=0"]
    with subprocess.Popen(
        [*command, f"--url={server.grpc}"], stdout=subprocess.PIPE, text=True
    ) as front:
        try:
            said = front.stdout.readline() if front.stdout else ""
            address = said.split("//")[1].removesuffix("/v1\n")
            process = psutil.Process(front.pid)
            time.sleep(2)  # it binds at once and listens a little later
            used(process, address, options.model, SHORT, 5)
            short = used(process, address, options.model, SHORT, options.requests)
            long = used(process, address, options.model, options.tokens, options.requests)
        finally:
            front.terminate()
    per_token = (long - short) / options.requests / (options.tokens - SHORT)
    print(f"per request  {1e3 * short / options.requests:6.2f} ms of CPU, a stream of one token")
    print(f"per token    {1e3 * per_token:6.2f} ms of CPU, streams of {options.tokens}")


def main() -> None:
    """Start everything, measure, and end it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=Path, required=True, help="a model repository")
    parser.add_argument("--model", default="tiny_writer", help="the language model in it")
    parser.add_argument("--requests", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=100)
    options = parser.parse_args()
    chosen = ("--model-control-mode=explicit", f"--load-model={options.model}")
    announce()
    with serve(options.models, arguments=chosen) as server:
        measure(options, server)


if __name__ == "__main__":
    main()
