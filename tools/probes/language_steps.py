"""What one step of decoding takes: `python -m tools.probes.language_steps`.

Random weights in the sizes of SmolLM2-135M, every row with the same number of cached tokens. Our
decoder in OpenVINO and in torch, and transformers' modules, run over the same kind of paged cache,
in turns; of each the fastest run counts. Parts of torch's step are timed by themselves. With one
thread its own CPU time counts, which others on the machine disturb less.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import transformers

from ge_backend.device.machine.cores import usable_cores
from ge_backend.engines.torch.linear import linear
from ge_backend.executor.process.main import keep_freed_memory
from ge_backend.model.files.checkpoint import read_checkpoint
from ge_text.models.batch import Batch, Group, SampleRow
from ge_text.models.sampling import Sampling
from ge_text.openvino.open import load_openvino
from ge_text.torch.attention import Attend
from ge_text.torch.base import Decoder
from ge_text.torch.cache import PagedCache
from ge_text.torch.decoder import TransformersDecoder
from ge_text.torch.loading import DTYPES, load_decoder
from ge_text.torch.sampler import draw
from ge_text.torch.step import stage

from .graph_steps import BLOCK_SIZE, SMOLLM2

__all__ = ["decoding_batch", "main", "measure", "step_clock"]

CPU = torch.device("cpu")
COLUMNS = ("transformers", "openvino", "torch", "attention", "head", "draw")
Run = Callable[[], object]


def main() -> None:
    """Print one line for each precision and batch size."""
    parser = argparse.ArgumentParser(description=__doc__, prog="language_steps")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--cached", type=int, default=320, help="tokens before the new one")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--precision", nargs="+", default=["BF16", "FP32"], choices=list(DTYPES))
    parser.add_argument("--default-heap", action="store_true", help="as outside of an executor")
    given = parser.parse_args()
    if not given.default_heap:
        keep_freed_memory()
    torch.set_num_threads(given.threads)
    print(f"ms per step, {given.cached} cached tokens, {given.threads} threads")
    print(f"{'':14}" + "".join(f"{name:>14}" for name in COLUMNS))
    for precision in given.precision:
        for rows, found in measure(
            SMOLLM2, precision, given.batch, cached=given.cached, rounds=given.rounds
        ):
            times = "".join(f"{found[name] * 1e3:14.2f}" for name in COLUMNS)
            print(f"{precision} x {rows:<6}{times}", flush=True)


def measure(
    sizes: Mapping[str, int], precision: str, batches: Sequence[int], *, cached: int, rounds: int
) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield the number of rows and the seconds that each column takes."""
    with tempfile.TemporaryDirectory() as folder:
        config = transformers.LlamaConfig(**sizes, tie_word_embeddings=True)
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config).to(DTYPES[precision])
        model.save_pretrained(folder)
        del model
        checkpoint = read_checkpoint(Path(folder))
        ours = load_decoder(checkpoint, dtype=precision, device=CPU)
        fused = load_openvino(checkpoint, dtype=precision, threads=torch.get_num_threads())
        theirs = TransformersDecoder(checkpoint, dtype=DTYPES[precision], device=CPU)
        with torch.inference_mode():
            for rows in batches:
                runs = _runs((fused, ours, theirs), rows, cached, sizes["num_attention_heads"])
                yield rows, _fastest(runs, rounds)


def _runs(
    decoders: tuple[Decoder, Decoder, Decoder], rows: int, cached: int, heads: int
) -> dict[str, Run]:
    fused, ours, theirs = decoders
    batch = decoding_batch(rows, cached)
    caches = {dtype: _filled(ours, batch, dtype) for dtype in {fused.dtype, ours.dtype}}
    cache, wide = caches[ours.dtype], caches[fused.dtype]
    logits = ours.logits(stage(batch, cache, CPU))
    shape = ours.shapes[0]
    query = torch.randn(rows, heads, shape.key_dim).to(ours.dtype)
    new = torch.randn(rows, shape.heads, shape.key_dim).to(ours.dtype)
    how = Attend(scale=shape.key_dim**-0.5)

    def attention() -> None:
        step = stage(batch, cache, CPU)
        for layer in range(len(ours.shapes)):
            step.attend(layer, how, query, new, new)

    hidden = torch.randn(rows, heads * shape.key_dim).to(ours.dtype)
    head = linear(torch.randn(logits.shape[1], hidden.shape[1]).to(ours.dtype))
    return {
        "transformers": lambda: draw(theirs.logits(stage(batch, cache, CPU)), batch.rows),
        "openvino": lambda: draw(fused.logits(stage(batch, wide, CPU)), batch.rows),
        "torch": lambda: draw(ours.logits(stage(batch, cache, CPU)), batch.rows),
        "attention": attention,
        "head": lambda: head(hidden),
        "draw": lambda: draw(logits, batch.rows),
    }


def _filled(decoder: Decoder, batch: Batch, dtype: torch.dtype) -> PagedCache:
    """Return a cache with room for the batch, full of something."""
    cache = PagedCache(
        decoder.shapes,
        block_size=BLOCK_SIZE,
        num_blocks=1 + batch.groups[0].tables.size,
        dtype=dtype,
        device=CPU,
    )
    for tensor in (*cache.keys, *cache.values):
        tensor.normal_()
    return cache


def decoding_batch(rows: int, cached: int) -> Batch:
    """Return a step in which every row has one new token behind so many cached ones."""
    blocks = cached // BLOCK_SIZE + 1
    tables = 1 + np.arange(rows * blocks).reshape(rows, blocks)
    nothing = np.zeros(0, np.int64)
    row = SampleRow(
        sampling=Sampling(temperature=0.0), position=cached + 1, prompt=nothing, output=nothing
    )
    return Batch(
        ids=np.arange(rows) % 7,
        positions=np.full(rows, cached),
        slots=tables[:, -1] * BLOCK_SIZE + cached % BLOCK_SIZE,
        groups=(Group(rows=rows, query=1, tables=tables, lengths=np.full(rows, cached + 1)),),
        sampled=np.arange(rows),
        rows=(row,) * rows,
    )


def step_clock() -> Callable[[], float]:
    """Return what times a step: CPU time where one thread computes, an engine's own or this one."""
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def _fastest(runs: Mapping[str, Run], rounds: int) -> dict[str, float]:
    """Return the seconds of each run's fastest turn: what others do here can only lengthen it."""
    found = dict.fromkeys(runs, float("inf"))
    clock = step_clock()
    for _ in range(rounds):
        for name, run in runs.items():
            begun = clock()
            run()
            found[name] = min(found[name], clock() - begun)
    return found


if __name__ == "__main__":
    main()
