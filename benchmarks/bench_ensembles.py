"""Sending images as files against sending them as float tensors, on the real server.

`python -m benchmarks.bench_ensembles` prints one table: bytes on the wire in both directions,
images per second, and CPU time on both sides. Three ways to classify the same photo-sized JPEG
files, which take turns:

files     the client sends the file; an ensemble of the host preprocesses and classifies it
tensors   the client sends FP32 tensors that it has made beforehand: what the network alone costs
prepared  the client makes the tensor from the file for each request, with the same code
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import tritonclient.http as httpclient

from benchmarks.harness import cpu
from benchmarks.harness.client import BenchmarkError
from benchmarks.harness.report import machine
from benchmarks.photo_models import ENSEMBLE, NETWORK, PREPROCESS, photos, write_repository
from ge_backend.device.base import Graph, GraphSource, open_device
from ge_backend.tensors import Array
from ge_tools.tritonserver.directory import processes_of
from ge_tools.tritonserver.installation import find_server
from ge_tools.tritonserver.options import ServerOptions
from ge_tools.tritonserver.server import TritonServer

__all__ = ["main"]

TOLERANCE = 1e-4
TITLE = "one JPEG photo of 640 x 480 in a request over HTTP, network on 224 x 224"
# Field of `Window`, what it is divided by, the unit then.
COLUMNS = (
    ("sent", 1e3, "kB"),
    ("received", 1e3, "kB"),
    ("throughput", 1, ""),
    ("p50_ms", 1, "ms"),
    ("server_ms", 1, "ms"),
    ("client_ms", 1, "ms"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A request as it goes over HTTP: `headers` tell where the JSON ends and the tensors begin."""

    model: str
    body: bytes
    headers: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to have an image classified: what is sent for the image at a position."""

    name: str
    message: Callable[[int], Message]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What a short time of load gave; bytes and CPU milliseconds are for one image."""

    way: str
    concurrency: int
    throughput: float
    p50_ms: float
    sent: float
    received: float
    server_ms: float
    client_ms: float


def main() -> None:
    """Measure and print."""
    options = _parse(sys.argv[1:])
    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    with tempfile.TemporaryDirectory(prefix="ge-bench-") as folder, _served(Path(folder)) as server:
        ways = _ways(photos(options.images), Path(folder) / "models")
        _check(ways, server, options.images)
        windows = [
            _measure(way, server, concurrency, options)
            for _ in range(options.rounds)
            for concurrency in options.concurrency
            for way in ways
        ]
    print(f"{TITLE}\n\n{_table(windows)}")


@contextmanager
def _served(folder: Path) -> Iterator[TritonServer]:
    write_repository(folder / "models")
    options = ServerOptions(
        repositories=(folder / "models",),
        log_file=folder / "server.log",
        environment={"GE_CACHE_DIR": "off", "GE_WARMUP": "on"},
    )
    with TritonServer(find_server(), options) as server:
        yield server


def _ways(files: Sequence[bytes], models: Path) -> tuple[Way, ...]:
    graph = open_device("cpu").load(GraphSource.of(models / PREPROCESS / "1" / "image.json"))
    tensors = [_tensor(_prepared(graph, file)) for file in files]
    bytes_ = [_file(file) for file in files]
    return (
        Way(name="files", message=lambda at: bytes_[at % len(files)]),
        Way(name="tensors", message=lambda at: tensors[at % len(files)]),
        Way(name="prepared", message=lambda at: _tensor(_prepared(graph, files[at % len(files)]))),
    )


def _prepared(graph: Graph, file: bytes) -> Array:
    """Return what preprocessing makes of one file: FP32 [1, 3, height, width]."""
    return graph.run({"image": np.array([[file]], object)}, {}, exclusive=False)["pixels"]


def _file(file: bytes) -> Message:
    given = httpclient.InferInput("image", [1, 1], "BYTES")
    given.set_data_from_numpy(np.array([[file]], object))
    return _message(ENSEMBLE, given)


def _tensor(pixels: Array) -> Message:
    given = httpclient.InferInput("pixels", list(pixels.shape), "FP32")
    given.set_data_from_numpy(pixels)
    return _message(NETWORK, given)


def _message(model: str, given: httpclient.InferInput) -> Message:
    wanted = httpclient.InferRequestedOutput("scores", binary_data=True)
    body, json_bytes = httpclient.InferenceServerClient.generate_request_body(
        [given], outputs=[wanted]
    )
    headers = {"Inference-Header-Content-Length": str(json_bytes)} if json_bytes else {}
    return Message(model=model, body=body, headers=headers)


def _post(connection: HTTPConnection, message: Message) -> tuple[bytes, int]:
    """Return the answer's body and how long its JSON is.

    Raises:
        BenchmarkError: the server refused the request.
    """
    connection.request("POST", f"/v2/models/{message.model}/infer", message.body, message.headers)
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise BenchmarkError(f"{message.model}: {answer.status} {body[:500]!r}")
    return body, int(answer.headers["Inference-Header-Content-Length"])


def _check(ways: Sequence[Way], server: TritonServer, images: int) -> None:
    """See that every way gives the same scores for every image.

    Raises:
        BenchmarkError: two ways differ.
    """
    connection = HTTPConnection(server.http)
    for at in range(images):
        answers = [_post(connection, way.message(at)) for way in ways]
        scores = [np.frombuffer(body[json_bytes:], np.float32) for body, json_bytes in answers]
        worst = max(float(np.abs(other - scores[0]).max()) for other in scores)
        if not worst <= TOLERANCE:
            raise BenchmarkError(f"image {at}: two ways differ by {worst:.1e}")
    connection.close()


def _measure(
    way: Way, server: TritonServer, concurrency: int, options: argparse.Namespace
) -> Window:
    """Keep so many requests in flight for a while."""
    roles = cpu.roles_of(processes_of(server.directory.run))
    began, client, used = time.perf_counter(), time.process_time(), cpu.used_s(roles)
    end = began + options.seconds

    def work(first: int) -> list[tuple[float, int, int]]:
        """Send until the time is over; return seconds, bytes out and in for each request."""
        connection = HTTPConnection(server.http)
        done: list[tuple[float, int, int]] = []
        at = first
        while (started := time.perf_counter()) < end:
            message = way.message(at)
            body, _ = _post(connection, message)
            done.append((time.perf_counter() - started, len(message.body), len(body)))
            at += concurrency
        connection.close()
        return done

    with ThreadPoolExecutor(concurrency) as threads:
        requests = [each for part in threads.map(work, range(concurrency)) for each in part]
    took, count = time.perf_counter() - began, len(requests)
    server_s = sum(cpu.used_s(roles).values()) - sum(used.values())
    return Window(
        way=way.name,
        concurrency=concurrency,
        throughput=count / took,
        p50_ms=1e3 * statistics.median(seconds for seconds, _, _ in requests),
        sent=statistics.fmean(out for _, out, _ in requests),
        received=statistics.fmean(back for _, _, back in requests),
        server_ms=1e3 * server_s / count,
        client_ms=1e3 * (time.process_time() - client) / count,
    )


def _table(windows: Sequence[Window]) -> str:
    """Return a table of the medians over the rounds, in Markdown."""
    lines = ["| in flight | way | sent | received | images/s | p50 | server CPU | client CPU |"]
    lines.append("| --- " * 8 + "|")
    for key in dict.fromkeys((window.concurrency, window.way) for window in windows):
        rounds = [window for window in windows if (window.concurrency, window.way) == key]
        cells = (
            f"{statistics.median(getattr(window, field) for window in rounds) / unit:.1f} {name}"
            for field, unit, name in COLUMNS
        )
        lines.append(f"| {key[0]} | {key[1]} | {' | '.join(map(str.strip, cells))} |")
    return "\n".join(lines)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench_ensembles", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--concurrency", type=int, nargs="+", default=[1, 16], help="requests in flight")
    add("--rounds", type=int, default=5)
    add("--seconds", type=float, default=3.0, help="of one window")
    add("--images", type=int, default=16, help="different ones")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
