"""What shared memory saves: one tensor there and back, in messages or in a shared region.

The model computes nothing and returns its input, so what is measured is the way of the tensor. The
four ways take turns for each size, and the fastest trip of each counts. The client's own copies are
part of it: into the message or the region, and out of the message; a result in a region is read
where it is.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tritonclient.utils.shared_memory as shm

from benchmarks.harness.compare import announce
from benchmarks.harness.servers import serve
from benchmarks.harness.turns import fastest_ms
from benchmarks.model_folder import write_model

__all__ = ["lines", "main", "plot", "write_repository"]

MODEL = "echo"
CONFIG = """\
backend: "ge"
max_batch_size: 0
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
"""
KIB = 1024
SIZES = tuple(KIB * 4**power for power in range(9))  # 1 KiB to 64 MiB
REGION = f"ge-bench-{os.getpid()}"
WAYS = ("http", "http shared", "grpc", "grpc shared")

Values = npt.NDArray[np.float32]
# There and back once; returns what came, which may be a view.
Trip = Callable[[Values], Values]


def main() -> None:
    """Run it, print the table and draw it."""
    options = _parse(sys.argv[1:])
    announce()
    with tempfile.TemporaryDirectory(prefix="ge-bench-") as temporary:
        repository = Path(temporary)
        write_repository(repository)
        with serve(repository) as server, ExitStack() as stack:
            region = stack.enter_context(_region(2 * max(SIZES)))
            trips: dict[str, Trip] = {}
            for protocol in ("http", "grpc"):
                address = getattr(server, protocol)
                ways = stack.enter_context(_ways(protocol, address, region, 2 * max(SIZES)))
                trips |= ways
            times = {nbytes: _measured(trips, nbytes, options.rounds) for nbytes in SIZES}
    print("\n".join(lines(times)))
    if options.plot is not None and not plot(times, options.plot):
        print("no plot: matplotlib is not installed", file=sys.stderr)


def write_repository(repository: Path) -> None:
    """Write the one model."""
    tensor = {"dtype": "FP32", "dims": ["length"]}
    outputs = [{"name": "y", **tensor, "compute": "echo", "of": "x"}]
    graph = {"inputs": [{"name": "x", **tensor}], "outputs": outputs}
    write_model(repository / MODEL, CONFIG, {"device": "null", "warmup": "off"}, graph=graph)


def lines(times: Mapping[int, Mapping[str, float]]) -> Iterator[str]:
    """Yield a Markdown table; `saved` is the part of the time that shared memory saves."""
    yield "| tensor | http | shared | saved | grpc | shared | saved |"
    yield "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for nbytes, own in times.items():
        cells = [_size(nbytes)]
        for plain, shared in (WAYS[:2], WAYS[2:]):
            cells += [f"{own[plain]:.2f} ms", f"{own[shared]:.2f} ms"]
            cells.append(f"{round(100 - 100 * own[shared] / own[plain])}%")
        yield f"| {' | '.join(cells)} |"


def plot(times: Mapping[int, Mapping[str, float]], path: Path) -> bool:
    """Draw time by size; False if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional, and slow to import

    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axis = figure.subplots()
    sizes = list(times)
    for way in WAYS:
        colour = "tab:blue" if way.startswith("http") else "tab:orange"
        style = "o--" if "shared" in way else "o-"
        axis.plot(sizes, [times[size][way] for size in sizes], style, label=way, color=colour)
    axis.set(xscale="log", yscale="log", xlabel="tensor, each way", ylabel="there and back, ms")
    axis.set_xticks(sizes, map(_size, sizes))
    axis.minorticks_off()
    axis.grid(alpha=0.3)
    axis.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return True


def _measured(trips: Mapping[str, Trip], nbytes: int, rounds: int) -> dict[str, float]:
    """Return the milliseconds of each way's fastest trip: other programs only ever add to one.

    Raises:
        ValueError: what came back is not what was sent.
    """
    print(f"tensors of {_size(nbytes)}", file=sys.stderr, flush=True)
    values = np.random.default_rng(nbytes).random(nbytes // 4, np.float32)
    for trip in trips.values():  # which warms it up, too
        if not np.array_equal(trip(values), values):
            raise ValueError("what came back is not what was sent")
    ways = {way: functools.partial(trip, values) for way, trip in trips.items()}
    return fastest_ms(ways, rounds)


@contextmanager
def _region(nbytes: int) -> Iterator[Any]:
    region = shm.create_shared_memory_region(REGION, f"/{REGION}", nbytes, create_only=True)
    try:
        yield region
    finally:
        shm.destroy_shared_memory_region(region)


@contextmanager
def _ways(protocol: str, address: str, region: Any, nbytes: int) -> Iterator[dict[str, Trip]]:
    """Yield the two ways of one protocol; the region's first half takes inputs, the other outputs.

    Closed at the end: an HTTP connection left open would hold up the server's shutdown.
    """
    triton = importlib.import_module(f"tritonclient.{protocol}")

    def in_messages(values: Values) -> Values:
        item = triton.InferInput("x", values.shape, "FP32")
        item.set_data_from_numpy(values)
        found: Values = client.infer(MODEL, [item]).as_numpy("y")
        return found

    def in_region(values: Values) -> Values:
        item = triton.InferInput("x", values.shape, "FP32")
        shm.set_shared_memory_region(region, [values])
        item.set_shared_memory(REGION, values.nbytes)
        output = triton.InferRequestedOutput("y")
        output.set_shared_memory(REGION, values.nbytes, offset=nbytes // 2)
        client.infer(MODEL, [item], outputs=[output])
        found: Values = shm.get_contents_as_numpy(region, np.float32, values.shape, nbytes // 2)
        return found

    with triton.InferenceServerClient(address) as client:
        if REGION not in str(client.get_system_shared_memory_status()):
            client.register_system_shared_memory(REGION, f"/{REGION}", nbytes)
        yield {protocol: in_messages, f"{protocol} shared": in_region}


def _size(nbytes: int) -> str:
    return f"{nbytes // KIB} KiB" if nbytes < KIB * KIB else f"{nbytes // KIB // KIB} MiB"


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench_shared_memory", description=__doc__)
    parser.add_argument("--rounds", type=int, default=40, help="trips of each size and way")
    parser.add_argument("--plot", type=Path, help="where to draw it, such as shared_memory.png")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
