"""Speed, memory and accuracy of a language model per precision, without a server.

`python -m tools.probes.bench_language_precision [FOLDER]` prints a table of benchmarks/README.md;
the model is SmolLM2-135M where none is given. It decodes behind 320 cached tokens, all precisions
in turns; of each the fastest step counts. With one thread that is CPU time, which others on the
machine disturb less. Memory is what a process of its own gains by the weights. Then each reads the
same text, of this repository's decisions: how likely it finds every next token, and which one it
finds most likely, against FP32.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.harness.memory import read_pss
from benchmarks.harness.report import ROOT, machine
from demo.chat_model import prepare
from rich.console import Console

from ge_backend.device.machine.cores import usable_cores
from ge_backend.device.machine.host_memory import host_memory
from ge_backend.engines.ov.arithmetic import has_int8
from ge_backend.engines.preprocess.text import open_tokenizer
from ge_backend.tensors import Array
from ge_text.models.base import LanguageModel
from ge_text.models.batch import Batch, Drawn, Group, SampleRow
from ge_text.models.open import OpenLanguage, open_language
from ge_text.models.sampling import Sampling

from .graph_steps import BLOCK_SIZE
from .language_steps import decoding_batch, step_clock

__all__ = ["Held", "Row", "greedy", "lines", "logprobs", "main"]

CACHE = ROOT / ".cache" / "chat_model"
TEXT = ROOT / "docs" / "decisions.md"
CACHED = 320
ROWS = (1, 8)
WINDOW = 256  # tokens that are read at once, each window by itself


@dataclass(frozen=True, slots=True)
class Held:
    """How a model is held: the parameters `precision` and `kv_cache_dtype`."""

    precision: str
    cache: str


HELD = (
    Held("fp32", "model"),
    Held("fp32", "bf16"),
    Held("fp32", "int8"),
    Held("bf16", "model"),
    Held("int8", "model"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line.

    Attributes:
        seconds: of a step, by its rows.
        nbytes: of the weights in memory.
        token_bytes: that a token takes in the cache.
        logprobs: of the text's tokens.
        tokens: the most likely one in place of each of them.
    """

    held: Held
    seconds: Mapping[int, float]
    nbytes: int
    token_bytes: int
    logprobs: Array
    tokens: Array


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tools.probes.bench_language_precision")
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--windows", type=int, default=16, help=f"of {WINDOW} tokens each")
    given = parser.parse_args()
    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    folder = given.folder or prepare(CACHE, Console(stderr=True))
    text = TEXT.read_text(encoding="utf-8")
    ids = open_tokenizer(folder / "tokenizer.json").encode(text)[: given.windows * WINDOW]
    here = [held for held in HELD if held.precision != "int8" or has_int8()]
    nbytes = {held: _in_its_own_process(folder, held) for held in here}
    with contextlib.ExitStack() as closing:
        models = {held: opened(folder, held, given.threads) for held in here}
        for model in models.values():
            closing.callback(model.close)
        seconds = fastest(models, given.rounds)
        rows = [
            Row(
                held=held,
                seconds=seconds[held],
                nbytes=nbytes[held],
                token_bytes=model.cache_bytes_per_block() // BLOCK_SIZE,
                logprobs=logprobs(model, ids),
                tokens=greedy(model, ids),
            )
            for held, model in models.items()
        ]
    print(f"{given.threads} threads, {CACHED} cached tokens; a text of {len(ids)} tokens")
    print("\n".join(lines(rows)))


def lines(rows: Sequence[Row]) -> list[str]:
    """Return a Markdown table; differences are against the first row."""
    steps = [f"ms at {count} text{'s' * (count > 1)}" for count in ROWS]
    head = ["`precision`", "`kv_cache_dtype`", *steps, "weights", "cache per token"]
    table = [
        f"| {' | '.join(head)} | mean difference | largest | perplexity | same token |",
        "| --- | --- |" + " ---: |" * (len(ROWS) + 6),
    ]
    for row in rows:
        away = np.abs(row.logprobs - rows[0].logprobs)
        cells = [
            f"`{row.held.precision}`",
            f"`{row.held.cache}`",
            *(f"{row.seconds[count] * 1e3:.1f}" for count in ROWS),
            f"{row.nbytes / 2**20:.0f} MiB",
            f"{row.token_bytes / 2**10:.1f} KiB",
            *((f"{away.mean():.4f}", f"{away.max():.2f}") if row is not rows[0] else ("", "")),
            f"{math.exp(-row.logprobs.mean()):.3f}",
            f"{(row.tokens == rows[0].tokens).mean():.1%}" if row is not rows[0] else "",
        ]
        table.append(f"| {' | '.join(cells)} |")
    return table


def opened(folder: Path, held: Held, threads: int) -> LanguageModel:
    """Return the model with a cache for the largest step, warmed up."""
    model = open_language(
        OpenLanguage(
            device="cpu",
            folder=folder,
            precision=held.precision,
            threads=threads,
            block_size=BLOCK_SIZE,
            memory=host_memory,
            cache_dtype=held.cache,
        )
    ).model
    model.open_cache(1 + max(ROWS) * (CACHED // BLOCK_SIZE + 1))
    for rows in ROWS:
        model.step(decoding_batch(rows, CACHED))
    return model


def fastest(
    models: Mapping[Held, LanguageModel], rounds: int
) -> Mapping[Held, Mapping[int, float]]:
    """Return the seconds of each model's fastest step with so many rows; they take turns."""
    found = {held: dict.fromkeys(ROWS, math.inf) for held in models}
    batches = {rows: decoding_batch(rows, CACHED) for rows in ROWS}
    clock = step_clock()
    for _ in range(rounds):
        for rows, batch in batches.items():
            for held, model in models.items():
                begun = clock()
                model.step(batch)
                found[held][rows] = min(found[held][rows], clock() - begun)
    return found


def logprobs(model: LanguageModel, ids: Array) -> Array:
    """Return how likely the model finds each token behind those before it in its window: FP32."""
    found = _steps(model, ids, lambda token: functools.partial(_only, token, model.vocabulary))
    return np.concatenate([step.logprobs for step in found])


def greedy(model: LanguageModel, ids: Array) -> Array:
    """Return the token that the model finds most likely in the place of each of the text's."""
    return np.concatenate([step.tokens for step in _steps(model, ids, lambda _: None)])


def _steps(
    model: LanguageModel, ids: Array, allowed: Callable[[int], Callable[[], Array] | None]
) -> list[Drawn]:
    """Return one step for each window of the text; what may be drawn depends on what follows."""
    starts = range(0, len(ids) - 1, WINDOW)
    windows = [ids[start : start + WINDOW] for start in starts]
    return [model.step(_reading(model, window, allowed)) for window in windows]


def _reading(
    model: LanguageModel, ids: Array, allowed: Callable[[int], Callable[[], Array] | None]
) -> Batch:
    """Return a step that draws after each token but the last."""
    nothing, count = np.zeros(0, np.int64), len(ids) - 1
    places, block_size = np.arange(count), model.block_size
    table = 1 + np.arange(-(-count // block_size))
    rows = tuple(
        SampleRow(
            sampling=Sampling(temperature=0.0, logprobs=0),
            position=place + 1,
            prompt=nothing,
            output=nothing,
            allowed=allowed(int(following)),
        )
        for place, following in enumerate(ids[1:])
    )
    return Batch(
        ids=ids[:-1],
        positions=places,
        slots=table[places // block_size] * block_size + places % block_size,
        groups=(Group(rows=1, query=count, tables=table[None], lengths=np.array([count])),),
        sampled=places,
        rows=rows,
    )


def _only(token: int, vocabulary: int) -> Array:
    """Return the mask that allows one token, as `SampleRow.allowed` has it."""
    return np.packbits(np.arange(vocabulary) == token, bitorder="little")


def _in_its_own_process(folder: Path, held: Held) -> int:
    with multiprocessing.get_context("spawn").Pool(1) as process:
        return process.apply(_gained_bytes, (folder, held))


def _gained_bytes(folder: Path, held: Held) -> int:
    """Return what this process, which has imported torch, gains by having the model."""
    before = _own_bytes()
    model = opened(folder, held, usable_cores())
    gained = _own_bytes() - before
    model.close()
    return gained


def _own_bytes() -> int:
    return read_pss(Path("/proc/self/smaps_rollup").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
