"""Speed, memory and accuracy of real encoders per engine and precision, without a server.

`python -m tools.probes.bench_precision` prints a table of benchmarks/README.md and a JSON line per
row, each measured in a process of its own. Cosines are those of texts' embeddings with the first
row's of the same encoder; texts are found by headings, both of this repository's pages. Further
encoders, as packages ship them, are named; of a graph, its embeddings, too:

    python -m tools.probes.bench_precision --model NAME=FILE.onnx:OUTPUT --model NAME=FOLDER
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from demo.encoder import INPUTS, OUTPUT, load_tokenizer, prepare, tokenise
from rich.console import Console
from rich.table import Table

from ge_backend.device.base import CompiledAhead, Graph, GraphSource, open_device
from ge_backend.device.machine.host_memory import give_back_freed
from ge_backend.serving.warmup.measure import processor
from ge_backend.tensors import Array

from .retrieval import found, sections

DOCS = Path(__file__).resolve().parents[2] / "docs"
ROWS = 8
LENGTHS = (24, 128)
REPEATS = 7
NAMED = "NAME=FILE:OUTPUT, or NAME=FOLDER of a checkpoint"
QUANTISED = "onnxruntime, quantised by itself"
TITLES = ("encoder", "engine", "precision", "MB", "recall@1", "MRR", "mean cosine", "least cosine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to compute an encoder.

    Attributes:
        encoder: its name in the table.
        path: the model file.
        output: the name of its embeddings.
        engine: what computes it, and a precision.
    """

    encoder: str
    path: Path
    output: str
    engine: str
    precision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one way came to.

    Attributes:
        ms: of 8 rows on one thread, by their tokens.
        megabytes: that loading and running took of the process, its shared pages in part.
        texts: FP32 embeddings of the task's texts, in its order; `queries` of its headings.
        computed_in: the precision, which is another one where the processor lacks it.
    """

    ms: Mapping[int, float]
    megabytes: float
    texts: Array
    queries: Array
    computed_in: str


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--model", action="append", default=[], help=NAMED)
    parser.add_argument("--sections", type=int, help="of the pages; all by default")
    options = parser.parse_args(arguments)
    console = Console(width=140)
    table = Table(title=f"{ROWS} rows, one thread per run, {processor()}")
    for title in (*TITLES, *(f"ms at {length} tokens" for length in LENGTHS)):
        table.add_column(title, justify="left" if title in TITLES[:3] else "right")
    with tempfile.TemporaryDirectory() as folder:
        full: dict[str, Result] = {}
        for way in ways(options.model, Path(folder), console):
            result = _apart(way, options.sections)
            row = described(way, result, full.setdefault(way.encoder, result))
            print(json.dumps(row), flush=True)
            times = (f"{value:.1f}" for value in result.ms.values())
            table.add_row(*(str(row[key]) for key in TITLES), *times)
    console.print(table)


def ways(models: Sequence[str], folder: Path, console: Console) -> Iterator[Way]:
    """Yield what is measured; of each encoder first what the others are compared with."""
    encoder = prepare(Path(".cache/encoder"), console)
    named_files, named_folders = named(models)
    files = {"all-MiniLM-L6-v2": (encoder.onnx, OUTPUT), **named_files}
    checkpoints = {"all-MiniLM-L6-v2, checkpoint": encoder.checkpoint, **named_folders}
    for name, (path, output) in files.items():
        for engine, precision in (
            ("onnxruntime", "origin"),
            (QUANTISED, "origin"),
            ("openvino", "origin"),
            ("openvino", "bf16"),
            ("openvino", "int8"),
        ):
            chosen = folder / f"{name}.onnx" if engine == QUANTISED else path
            if engine == QUANTISED:
                quantise(path, chosen)
            yield Way(encoder=name, path=chosen, output=output, engine=engine, precision=precision)
    for name, checkpoint in checkpoints.items():
        for engine, precision in (
            ("openvino", "origin"),
            ("openvino", "bf16"),
            ("openvino", "int8"),
            ("transformers", "bf16"),
        ):
            yield Way(
                encoder=name,
                path=checkpoint / "config.json",
                output=OUTPUT,
                engine=engine,
                precision=precision,
            )
    for precision in ("origin", "bf16", "fp16"):
        yield Way(
            encoder="all-MiniLM-L6-v2, model.pt2",
            path=encoder.program,
            output=OUTPUT,
            engine="torch",
            precision=precision,
        )


def named(models: Sequence[str]) -> tuple[dict[str, tuple[Path, str]], dict[str, Path]]:
    """Return graphs with the names of their embeddings, and checkpoints' folders, by their names.

    Args:
        models: each `NAME=FILE:OUTPUT` or `NAME=FOLDER`.
    """
    files: dict[str, tuple[Path, str]] = {}
    folders: dict[str, Path] = {}
    for model in models:
        name, _, rest = model.partition("=")
        if Path(rest).is_dir():
            folders[f"{name}, checkpoint"] = Path(rest).resolve()
        else:
            file, _, output = rest.rpartition(":")
            files[name] = Path(file).resolve(), output
    return files, folders


def quantise(path: Path, to: Path) -> None:
    """Write the file that ONNX Runtime makes of one, with weights and activations of 8 bits."""
    from onnxruntime.quantization import QuantType, quantize_dynamic  # noqa: PLC0415 - slow

    quantize_dynamic(path, to, weight_type=QuantType.QInt8, per_channel=True)


def described(way: Way, result: Result, full: Result) -> dict[str, object]:
    """Return a row of the table, by its titles."""
    task = found(result.queries, result.texts)
    cosines = _cosines(full.texts, result.texts)
    precision = way.precision
    if result.computed_in != precision:
        precision += f" (as {result.computed_in})"
    cells = (
        *(way.encoder, way.engine, precision, f"{result.megabytes:.0f}"),
        *(f"{task.first:.3f}", f"{task.reciprocal:.4f}"),
        *(f"{cosines.mean():.5f}", f"{cosines.min():.4f}"),
    )
    return {**dict(zip(TITLES, cells, strict=True)), "ms": list(result.ms.values())}


def _apart(way: Way, most: int | None) -> Result:
    """Measure in a process of its own, which had no other engine before."""
    with multiprocessing.get_context("spawn").Pool(1) as process:
        return process.apply(measured, (way, most))


def measured(way: Way, most: int | None = None) -> Result:
    """Return what one way comes to, measured in this process."""
    task = sections(DOCS)[:most]
    tokenizer = load_tokenizer()
    texts = tokenise([section.text for section in task], tokenizer)
    queries = tokenise([section.heading for section in task], tokenizer)
    device = open_device("cpu")
    engine = "onnxruntime" if way.engine == QUANTISED else way.engine
    before = _megabytes()
    source = GraphSource.of(way.path, engine=engine, precision=way.precision, threads=1)
    graph = device.load(source)
    try:
        ms = {length: _milliseconds(graph, length) for length in LENGTHS}
        gc.collect()
        give_back_freed()
        return Result(
            ms=ms,
            megabytes=_megabytes() - before,
            texts=_embedded(graph, way.output, texts),
            queries=_embedded(graph, way.output, queries),
            computed_in=graph.precision or way.precision,
        )
    finally:
        graph.close()


def _embedded(graph: Graph, output: str, texts: Sequence[Array]) -> Array:
    """Return the embedding of each text, alone in its run, so that no padding has a part in it."""
    return np.concatenate(
        [graph.run(_feeds(graph, text[None]), {}, exclusive=False)[output] for text in texts]
    )


def _feeds(graph: Graph, ids: Array) -> dict[str, Array]:
    known = dict(zip(INPUTS, (ids, np.ones_like(ids)), strict=True))
    names = [spec.name for spec in graph.signature.inputs if not spec.optional]
    return {name: known.get(name, np.zeros_like(ids)) for name in names}


def _milliseconds(graph: Graph, length: int) -> float:
    feeds = _feeds(graph, np.random.default_rng(1).integers(1000, 2000, (ROWS, length)))
    if isinstance(graph, CompiledAhead):
        graph.compile([{name: array.shape for name, array in feeds.items()}])
        graph.prepare(feeds)
    times: list[float] = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        graph.run(feeds, {}, exclusive=False)
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.median(times[1:])


def _cosines(expected: Array, got: Array) -> Array:
    lengths = np.linalg.norm(expected, axis=1) * np.linalg.norm(got, axis=1)
    cosines: Array = (expected * got).sum(1) / lengths
    return cosines


def _megabytes() -> float:
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) / 1024


if __name__ == "__main__":
    main()
