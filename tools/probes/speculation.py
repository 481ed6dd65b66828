"""Text generation with speculation and without: `python -m tools.probes.speculation`.

SmolLM2-135M-Instruct in this process, greedy where text repeats its prompt (`edit`: code is written
again with one name changed, `json`: records are written again, `copy`: a text is), with temperature
1 where it does not (`prose`). All requests of a batch come at once and have outputs of one length.
Both engines have weights of their own and take turns round by round; who is first takes turns too.
With one thread its own CPU time counts, which others on the machine disturb less. With `--draft`
the checkpoint in that folder guesses, else the text itself does.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.harness.report import machine
from demo.chat_model import prepare
from rich.console import Console

from ge_backend.device.base import MemoryInfo
from ge_backend.device.machine.cores import usable_cores
from ge_text.engine.engine import Engine
from ge_text.engine.parameters import Parameters
from ge_text.engine.sequence import GenerationRequest
from ge_text.engine.settings import EngineSettings, SpeculationMode
from ge_text.engine.update import Update
from ge_text.models.base import Tokenizer
from ge_text.models.open import OpenedLanguage, OpenLanguage, open_language
from ge_text.models.sampling import Sampling

__all__ = ["KINDS", "Turn", "lines", "main", "prompts", "turn"]

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "chat_model"
CACHE_BYTES = 1 << 30
NAMES = ("river", "stone", "market", "garden", "window", "letter", "harbour", "engine")
CODE = """def total_{0}(values, limit):
    result = 0
    for value in values:
        if value > limit:
            continue
        result = result + value
    return result


def largest_{0}(values):
    result = values[0]
    for value in values:
        if value > result:
            result = value
    return result
"""
RECORD = '{{"id": {1}, "name": "{0}", "tags": ["{0}", "item"], "price": {1}.50, "in_stock": true}}'
TEXT = (
    "The {0} was quiet in the morning. Nobody had come down the road since the rain began, and the "
    "old keeper of the {0} sat by the door with a cup of tea. He had counted {1} boats on the day "
    "before, and he meant to count them again before noon."
)


@dataclass(frozen=True, slots=True)
class Kind:
    """What is asked, and how tokens are drawn; {0} and {1} are another name and number each."""

    ask: str
    temperature: float


KINDS = {
    "edit": Kind("Rename `result` to `answer` in this code. Write all of it.\n\n" + CODE, 0.0),
    "json": Kind(
        "Repeat this JSON list and change nothing.\n\n[\n" + ",\n".join([RECORD] * 4) + "\n]", 0.0
    ),
    "copy": Kind("Repeat this text word for word.\n\n" + TEXT, 0.0),
    "prose": Kind("Tell me a long story about a {0} and the number {1}.", 1.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one engine did with one batch.

    Attributes:
        drafted, accepted: tokens.
        steps: of the model.
    """

    tokens: int
    seconds: float
    drafted: int
    accepted: int
    steps: int


def main() -> None:
    """Run it; print a line for each kind of text and batch size."""
    options = _parsed()
    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    print(f"{options.precision}, {options.threads} threads, {options.tokens} tokens each")
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    folder = prepare(CACHE, Console(stderr=True))
    off = EngineSettings(kv_cache_bytes=CACHE_BYTES, prefix_cache=False)
    on = replace(
        off,
        speculation=SpeculationMode.MODEL if options.draft else SpeculationMode.NGRAM,
        speculative_model=options.draft,
        num_speculative_tokens=0 if options.length == "auto" else int(options.length),
    )
    opened = [_opened(folder, options) for _ in range(2)]
    draft = _opened(options.draft, options).model if options.draft else None
    engines = [Engine(opened[0].model, off, clock), Engine(opened[1].model, on, clock, draft)]
    tokenizer = opened[0].tokenizer
    if tokenizer is None:
        raise FileNotFoundError(f"{folder} has no tokenizer.json")
    print("\n".join(lines({})))
    for kind in options.kinds:
        for batch in options.batch:
            turns: list[tuple[Turn, Turn]] = []
            for number in range(options.rounds):
                asked = prompts(tokenizer, kind, batch, number)
                order = engines if number % 2 else engines[::-1]
                done = {
                    engine: turn(engine, asked, KINDS[kind].temperature, options.tokens, clock)
                    for engine in order
                }
                turns.append((done[engines[0]], done[engines[1]]))
            print(lines({(kind, batch): turns})[-1], flush=True)


def prompts(tokenizer: Tokenizer, kind: str, batch: int, number: int) -> list[tuple[int, ...]]:
    """Return the tokens of so many prompts, others in each round."""
    made = []
    for row in range(batch):
        place = number * batch + row
        text = KINDS[kind].ask.format(NAMES[place % len(NAMES)], 10 + place)
        chat = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        made.append(tuple(int(token) for token in tokenizer.encode(chat)))
    return made


def turn(
    engine: Engine,
    asked: Sequence[tuple[int, ...]],
    temperature: float,
    tokens: int,
    clock: Callable[[], float],
) -> Turn:
    """Let an engine write outputs of so many tokens; prompts are read before the clock starts."""

    def sink(update: Update) -> bool:
        del update
        return False

    for place, prompt in enumerate(asked):
        sampling = Sampling(temperature=temperature, seed=place)
        parameters = Parameters(sampling=sampling, max_tokens=tokens, ignore_eos=True)
        engine.submit(GenerationRequest(id=str(place), prompt=prompt, parameters=parameters), sink)
    while engine.figures().counts["generated_tokens"] % (tokens * len(asked)) < len(asked):
        engine.step()
    before, begun = engine.figures().counts, clock()
    while engine.has_work:
        engine.step()
    seconds, after = clock() - begun, engine.figures().counts
    return Turn(
        tokens=after["generated_tokens"] - before["generated_tokens"],
        seconds=seconds,
        drafted=after["drafted_tokens"] - before["drafted_tokens"],
        accepted=after["accepted_tokens"] - before["accepted_tokens"],
        steps=after["steps"] - before["steps"],
    )


def lines(turns: dict[tuple[str, int], list[tuple[Turn, Turn]]]) -> list[str]:
    """Return a table; ratios and rates are medians over the rounds."""
    head = f"{'text':>6} {'batch':>5} {'off tok/s':>10} {'on tok/s':>10} {'on / off':>9} "
    rows = [head + f"{'worst':>6} {'drafted':>8} {'right':>6} {'tokens a step and text':>23}"]
    for (kind, batch), seen in turns.items():
        each_rate = [(off.tokens / off.seconds, on.tokens / on.seconds) for off, on in seen]
        ratios = [on / off for off, on in each_rate]
        rates = [statistics.median(side) for side in zip(*each_rate, strict=True)]
        drafted = sum(on.drafted for _, on in seen)
        right = sum(on.accepted for _, on in seen) / max(1, drafted)
        each = sum(on.tokens for _, on in seen) / sum(on.steps for _, on in seen) / batch
        rows.append(
            f"{kind:>6} {batch:>5} {rates[0]:>10.1f} {rates[1]:>10.1f} "
            f"{statistics.median(ratios):>9.2f} {min(ratios):>6.2f} {drafted:>8} {right:>6.2f} "
            f"{each:>23.2f}"
        )
    return rows


def _opened(folder: Path, options: argparse.Namespace) -> OpenedLanguage:
    return open_language(
        OpenLanguage(
            device="cpu",
            folder=folder,
            precision="bf16" if options.precision == "bf16" else "origin",
            threads=options.threads,
            block_size=16,
            memory=lambda: MemoryInfo(total_bytes=4 * CACHE_BYTES, free_bytes=4 * CACHE_BYTES),
        )
    )


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.probes.speculation")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128, help="of each output")
    parser.add_argument("--length", default="auto", help="num_speculative_tokens")
    parser.add_argument("--draft", type=Path, help="a checkpoint with the same vocabulary")
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    return parser.parse_args()


if __name__ == "__main__":
    main()
