"""One device, no server: an encoder's checkpoint as we run it against transformers' padded batch.

Random weights, log-normal lengths. Both ways get the same batches in turns; the fastest counts, and
the answers have to agree. `python -m tools.probes.bench_encoder --device cuda:0`; it needs torch,
transformers and numpy, and downloads nothing.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from benchmarks.encoder.mixes import MIXES, draw
from benchmarks.harness.turns import fastest_ms
from benchmarks.random_encoder import SIZES, write_checkpoint
from benchmarks.rivals.forward import Ids, Rows, pad

from ge_backend.device.base import Graph, GraphSource, open_device
from ge_backend.errors import DeviceUnavailable

__all__ = ["Batch", "lines", "main", "measure"]

ROWS = (1, 8, 32, 128)
DTYPES = {"origin": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
# Of unit-length vectors: the largest difference of any element that is still the same answer.
TOLERANCES = {"origin": 1e-4, "bf16": 1e-2, "fp16": 2e-3}

Embed = Callable[[Ids, Ids], Rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one batch took: milliseconds of the fastest run each way, and how far they are apart."""

    rows: int
    tokens: int
    padded_tokens: int
    ours_ms: float
    padded_ms: float
    apart: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table; return 1 if answers differ."""
    given = _parse(arguments)
    if importlib.util.find_spec("transformers") is None:
        print("SKIP  bench_encoder: transformers is not installed")
        return 0
    try:
        device = open_device(given.device)
    except DeviceUnavailable as error:
        print(f"SKIP  bench_encoder: {error}")
        return 0
    with tempfile.TemporaryDirectory(prefix="ge-bench-") as temporary:
        checkpoint = Path(temporary) / "checkpoint"
        write_checkpoint(given.encoder, checkpoint)
        source = GraphSource.of(checkpoint / "config.json", precision=given.precision, threads=1)
        started = time.perf_counter()
        graph = device.load(source)
        print(f"{given.encoder}, {given.precision}, {given.device}")
        print(f"loaded and made ready in {time.perf_counter() - started:.1f} s")
        ways = {"ours": _ours(graph), "padded": _padded(checkpoint, given)}
        found = list(measure(ways, given.rounds))
        graph.close()
    print("\n".join(lines(found)))
    worst = max(batch.apart for batch in found)
    if not worst <= TOLERANCES[given.precision]:
        print(f"answers differ by up to {worst:.1e}")
        return 1
    return 0


def measure(ways: Mapping[str, Embed], rounds: int) -> Iterator[Batch]:
    """Yield what batches of several sizes take."""
    drawn = draw(MIXES["lognormal"], max(ROWS), seed=1)
    for count in ROWS:
        ids, mask = pad(drawn[:count])
        answers = {name: embed(ids, mask) for name, embed in ways.items()}
        runs = {name: functools.partial(embed, ids, mask) for name, embed in ways.items()}
        fastest = fastest_ms(runs, rounds)
        yield Batch(
            rows=count,
            tokens=int(mask.sum()),
            padded_tokens=mask.size,
            ours_ms=fastest["ours"],
            padded_ms=fastest["padded"],
            apart=float(np.abs(answers["ours"] - answers["padded"]).max()),
        )


def lines(batches: Sequence[Batch]) -> list[str]:
    """Return the lines of a Markdown table."""
    head = ("rows", "tokens", "with padding", "ours", "padded", "padded / ours")
    found = [f"| {' | '.join(head)} |", "|" + " ---: |" * len(head)]
    for batch in batches:
        cells = (
            batch.rows,
            batch.tokens,
            batch.padded_tokens,
            f"{batch.ours_ms:.2f} ms",
            f"{batch.padded_ms:.2f} ms",
            f"{batch.padded_ms / batch.ours_ms:.2f}",
        )
        found.append(f"| {' | '.join(map(str, cells))} |")
    return found


def _ours(graph: Graph) -> Embed:
    def embed(ids: Ids, mask: Ids) -> Rows:
        (rows,) = graph.run(
            {"input_ids": ids, "attention_mask": mask}, {}, exclusive=False
        ).values()
        return rows

    return embed


def _padded(checkpoint: Path, given: argparse.Namespace) -> Embed:
    """Return what a plain Python model does with a dynamic batch."""
    import transformers  # noqa: PLC0415 - it need not be there

    bert = transformers.BertModel.from_pretrained(
        checkpoint, dtype=DTYPES[given.precision], add_pooling_layer=False
    )
    bert.to(given.device).eval()

    def embed(ids: Ids, mask: Ids) -> Rows:
        with torch.inference_mode():
            tokens, real = (torch.from_numpy(array).to(given.device) for array in (ids, mask))
            hidden = bert(tokens, real).last_hidden_state.float()
            means = (hidden * real[..., None]).sum(1) / real.sum(1, keepdim=True)
            rows: Rows = torch.nn.functional.normalize(means, dim=1).cpu().numpy()
        return rows

    return embed


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench_encoder", description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu, cuda:0, …")
    parser.add_argument("--encoder", choices=SIZES, default="bert-base")
    parser.add_argument("--precision", choices=DTYPES, default="bf16")
    parser.add_argument("--rounds", type=int, default=20)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
