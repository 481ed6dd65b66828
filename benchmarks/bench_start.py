"""How long a server takes until it is ready: one encoder, and the whole of model_repository.

Cold: no costs are kept from an earlier start. Warm: the same once more. Beside it plain Python
models of Triton's Python backend that load the same files and do nothing else. After READY the
encoder is asked once, and what that takes is shown as well. `--before COMMIT` starts an earlier
tree's servers between. Settled: all buckets have a cost; how
many were measured until then is counted in the server's log, and is none in a warm start.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from demo.encoder import prepare
from rich.console import Console

from benchmarks.encoder.systems import ONNX_FILE, Served, write_repository
from benchmarks.harness.compare import announce
from benchmarks.harness.report import ROOT
from benchmarks.harness.requests import asked, connect, http_request
from benchmarks.harness.servers import checked_out, serve_tree
from benchmarks.model_folder import write_model

__all__ = ["CACHE", "Start", "lines", "main", "num_measured", "write_plain"]

CACHE = ROOT / ".cache" / "encoder"
SETTLES_WITHIN_S = 120.0
CONFIG = """\
backend: "python"
instance_group [ { count: 1 kind: KIND_CPU } ]
input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }
"""
ONE, ALL = "one encoder, ONNX Runtime", "all of model_repository"
MODELS = {"one": ONE, "all": ALL}
HEADER = (
    "served",
    *("ready, cold", "ready, warm"),
    *("settled, cold", "settled, warm"),
    *("buckets measured, cold", "buckets measured, warm"),
    "first answer, cold",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of a server.

    Attributes:
        models: `ONE` or `ALL`.
        way: how they are served.
        warm: whether costs were kept from an earlier start.
        ready_s: from the start of the process to READY.
        answer_s: from there to the first answer; None where nothing was asked.
        settled_s: from the start of the process until all buckets had a cost; None without buckets.
        measured: how many of them were measured.
    """

    models: str
    way: str
    warm: bool
    ready_s: float
    answer_s: float | None = None
    settled_s: float | None = None
    measured: int | None = None


def main() -> None:
    """Start servers one after the other and print the table."""
    options = _parse(sys.argv[1:])
    announce()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ge-bench-")))
        _write(folder)
        trees = {"ge": ROOT}
        if options.before:
            trees["before"] = stack.enter_context(checked_out(options.before))
        starts = [
            start
            for _ in range(options.rounds)
            for name in options.models
            for start in _starts(folder, name, trees)
        ]
    print("\n".join(lines(starts)))


def lines(starts: Sequence[Start]) -> list[str]:
    """Return the table: the fastest of several starts, since others can only slow one down."""
    rows = [f"| {' | '.join(('models', *HEADER))} |", f"|{' --- |' * (1 + len(HEADER))}"]
    for models, way in dict.fromkeys((start.models, start.way) for start in starts):
        own = [start for start in starts if (start.models, start.way) == (models, way)]
        cold, warm = ([s for s in own if s.warm is kind] for kind in (False, True))
        cells = [
            *(_fastest([s.ready_s for s in kind]) for kind in (cold, warm)),
            *(_fastest([s.settled_s for s in kind]) for kind in (cold, warm)),
            *(", ".join(sorted({str(s.measured) for s in k} - {"None"})) for k in (cold, warm)),
            _fastest([s.answer_s for s in cold]),
        ]
        rows.append(f"| {' | '.join((models, way, *cells))} |")
    return rows


def _fastest(seconds: Sequence[float | None]) -> str:
    known = [each for each in seconds if each is not None]
    return f"{min(known):.1f} s" if known else ""


def write_plain(models: Path, into: Path) -> None:
    """Write a plain Python model for each model file of a repository of ours."""
    for file in sorted(models.glob("*/1/*")):
        folder = into / file.parent.parent.name
        if file.suffix in {".onnx", ".pt2", ".json"} and not folder.exists():
            version = write_model(folder, CONFIG, code=["load_only"])
            (version / file.name).symlink_to(file.resolve())


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1, help="the fastest start of each counts")
    parser.add_argument("--models", nargs="+", choices=tuple(MODELS), default=list(MODELS))
    parser.add_argument("--before", metavar="COMMIT", help="starts of that commit's tree, too")
    return parser.parse_args(arguments)


def _write(folder: Path) -> None:
    """Write `one` and `all`, and what is beside them in plain Python."""
    encoder = prepare(CACHE, Console(stderr=True))
    ours = Served(name="ge", file=ONNX_FILE)
    write_repository(folder / "one", [ours], {ONNX_FILE: encoder.onnx})
    make = [sys.executable, str(ROOT / "model_repository" / "make.py"), "--into"]
    subprocess.run([*make, str(folder / "all")], check=True, stdout=subprocess.DEVNULL)
    for name in MODELS:
        write_plain(folder / name, folder / f"{name}_plain")


def _starts(folder: Path, name: str, trees: Mapping[str, Path]) -> Iterator[Start]:
    models = MODELS[name]
    for way in ("background", "on"):
        for side, tree in trees.items():
            cache = Path(tempfile.mkdtemp(prefix="cache-", dir=folder))
            environment = {"GE_CACHE_DIR": str(cache), "GE_WARMUP": way}
            for warm in (False, True):
                start = Start(models=models, way=f"{side}, `warmup: {way}`", warm=warm, ready_s=0.0)
                yield _started(start, tree, folder / name, environment)
    plain = Start(models=models, way="plain Python models", warm=False, ready_s=0.0)
    yield _started(plain, ROOT, folder / f"{name}_plain", {})


def _started(start: Start, tree: Path, repository: Path, environment: Mapping[str, str]) -> Start:
    """Start a server, wait until its buckets are measured where it has some, and return the times.

    So the next start finds their costs.
    """
    begin = time.monotonic()
    with serve_tree(tree, repository, environment) as server:
        ready_s = time.monotonic() - begin
        print(f"  {repository.name}: ready after {ready_s:.1f} s", file=sys.stderr, flush=True)
        if not environment:
            return replace(start, ready_s=ready_s)
        answer_s = _ask(server.http) if (repository / "ge").is_dir() else None
        while not _measured(server.log) and time.monotonic() < begin + SETTLES_WITHIN_S:
            time.sleep(0.2)
        settled_s = time.monotonic() - begin
        text = server.log.read_text(errors="replace")
    return replace(
        start,
        ready_s=ready_s,
        answer_s=answer_s,
        settled_s=settled_s,
        measured=num_measured(text),
    )


def num_measured(text: str) -> int:
    """Return how many buckets were measured, and not only prepared, by a server's log."""
    return len(re.findall(r"warm-up \d+/\d+ .* ms(?! \(measured before\)),", text))


def _measured(log: Path) -> bool:
    """Whether every model that began with estimates has measured its buckets."""
    text = log.read_text(errors="replace")
    return text.count(": serving with ") <= text.count(": warm-up took")


def _ask(address: str) -> float:
    request = http_request("ge", {"input_ids": np.full((1, 24), 7)})
    begin = time.monotonic()
    with connect(address) as sock:
        asked(sock, request)
    return time.monotonic() - begin


if __name__ == "__main__":
    main()
