"""What speculation, known beginnings, forms and adapters gain or cost, per precision.

`python -m tools.probes.text_features`: SmolLM2-135M-Instruct on the real server, each feature asked
for and not, in turns within each round. Of each side all requests come at once.

    speculation   one text that repeats code of its prompt, 128 tokens
    prefix        16 texts that begin with the same 512 tokens, known from before, 32 out
    form          the first 64 tokens of eight answers by a JSON schema, and of eight free texts
    adapter       eight texts with one LoRA adapter of rank 8, 64 out
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.harness.compare import announce
from benchmarks.harness.servers import serve
from demo.chat_model import prepare
from rich.console import Console
from safetensors.numpy import save_file

from .speculation import CACHE, KINDS, NAMES

__all__ = ["FEATURES", "Ask", "Side", "lines", "main", "sides", "write_model"]

CONFIG = """backend: "ge"
parameters {{ key: "precision" value {{ string_value: "{precision}" }} }}
parameters {{ key: "speculation" value {{ string_value: "ngram" }} }}
"""
FEATURES = ("speculation", "prefix", "form", "adapter")
ADAPTER, RANK = "noise", 8
# Whose shortest answer has more tokens than are asked for.
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["bird", "fish", "insect"]},
        "legs": {"type": "integer", "minimum": 0, "maximum": 8},
        "food": {"type": "array", "items": {"type": "string", "minLength": 90}, "minItems": 9},
    },
    "required": ["kind", "legs", "food"],
    "additionalProperties": False,
}
TIMEOUT_S = 300
WORDS = ("sea", "calm", "boat", "came", "over", "the", "grey", "water", "nine", "men", "and", "dog")


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: a prompt, and its sampling parameters."""

    text: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Side:
    """What a feature does, and the same without it; `before` is asked first and not measured."""

    asked: Sequence[Ask]
    without: Sequence[Ask]
    before: Sequence[Ask] = ()


def main() -> None:
    """Run it; print a line for each feature and precision."""
    parser = argparse.ArgumentParser(prog="python -m tools.probes.text_features")
    parser.add_argument("--precision", nargs="+", default=["bf16", "int8"])
    parser.add_argument("--features", nargs="+", choices=FEATURES, default=list(FEATURES))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    announce()
    checkpoint = prepare(CACHE, Console(stderr=True))
    seen: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="ge-probe-") as temporary:
        for precision in options.precision:
            write_model(Path(temporary) / precision, checkpoint, precision)
        with serve(Path(temporary)) as server:
            for number in range(-1, options.rounds):  # the first warms up
                for feature in options.features:
                    for precision in options.precision:
                        turn = _turn(f"http://{server.http}", precision, feature, number)
                        if number >= 0:
                            seen.setdefault((feature, precision), []).append(turn)
    print("\n".join(lines(seen)))


def write_model(folder: Path, checkpoint: Path, precision: str) -> None:
    """Write a model of one precision: links to a checkpoint's files, and an adapter beside them."""
    version = folder / "1"
    place = version / "adapters" / ADAPTER
    place.mkdir(parents=True)
    for file in checkpoint.iterdir():
        if file.name != "adapters":
            (version / file.name).symlink_to(file)
    (folder / "config.pbtxt").write_text(CONFIG.format(precision=precision))
    shape = json.loads((checkpoint / "config.json").read_text())
    width, heads = shape["hidden_size"], shape["num_attention_heads"]
    outputs = {"q_proj": width, "v_proj": width // heads * shape["num_key_value_heads"]}
    drawn = np.random.default_rng(1)
    tensors = {}
    for layer in range(shape["num_hidden_layers"]):
        for product, size in outputs.items():
            named = f"base_model.model.model.layers.{layer}.self_attn.{product}"
            tensors[f"{named}.lora_A.weight"] = _small(drawn, RANK, width)
            tensors[f"{named}.lora_B.weight"] = _small(drawn, size, RANK)
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "bias": "none"}
    (place / "adapter_config.json").write_text(json.dumps(settings))
    save_file(tensors, place / "adapter_model.safetensors")


def sides(feature: str, number: int) -> Side:
    """Return what is asked in a round, prompts of its own."""
    if feature == "speculation":
        code = KINDS["edit"].ask.format(NAMES[number % len(NAMES)], 10 + number)
        chat = f"<|im_start|>user\n{code}<|im_end|>\n<|im_start|>assistant\n"
        exactly = _exactly(128)
        return Side([Ask(chat, exactly)], [Ask(chat, {**exactly, "speculation": False})])
    if feature == "prefix":
        begin, exactly = _prose(f"{number}", 512), {**_exactly(32), "speculation": False}
        asked = [Ask(begin + _prose(f"{number} {row}", 32), exactly) for row in range(16)]
        without = [Ask(ask.text, {**exactly, "prefix_cache": False}) for ask in asked]
        return Side(asked, without, before=[Ask(begin, {**exactly, "max_tokens": 1})])
    rows = [_prose(f"{feature} {number} {row}", 32) for row in range(8)]
    if feature == "form":
        plain = {**_exactly(64), "temperature": 1.0, "seed": number, "speculation": False}
        formed = {**plain, "ignore_eos": False, "guided_json": SCHEMA}
        return Side([Ask(row, formed) for row in rows], [Ask(row, plain) for row in rows])
    exactly = {**_exactly(64), "speculation": False}
    adapted = {**exactly, "lora_name": ADAPTER}
    return Side([Ask(row, adapted) for row in rows], [Ask(row, exactly) for row in rows])


def lines(seen: Mapping[tuple[str, str], Sequence[tuple[float, float]]]) -> list[str]:
    """Return a table of tokens per second, medians over the rounds of (without, with)."""
    rows = [f"{'feature':>12} {'precision':>9} {'without':>9} {'with':>9} {'with / without':>15}"]
    for (feature, precision), turns in seen.items():
        without, asked = (statistics.median(side) for side in zip(*turns, strict=True))
        ratio = statistics.median(on / off for off, on in turns)
        rows.append(f"{feature:>12} {precision:>9} {without:>9.1f} {asked:>9.1f} {ratio:>15.2f}")
    return rows


def _turn(url: str, model: str, feature: str, number: int) -> tuple[float, float]:
    """Return tokens per second without a feature and with it; who is first takes turns."""
    side = sides(feature, number)
    rates: dict[bool, float] = {}
    for with_it in (True, False) if number % 2 else (False, True):
        if with_it:
            for ask in side.before:
                _ask(url, model, ask)
        rates[with_it] = _rate(url, model, side.asked if with_it else side.without)
    return rates[False], rates[True]


def _rate(url: str, model: str, asks: Sequence[Ask]) -> float:
    with ThreadPoolExecutor(len(asks)) as pool:
        began = time.perf_counter()
        written = sum(pool.map(lambda ask: _ask(url, model, ask), asks))
        return written / (time.perf_counter() - began)


def _ask(url: str, model: str, ask: Ask) -> int:
    """Return how many tokens an answer has."""
    body = {
        "text_input": ask.text,
        "sampling_parameters": json.dumps(dict(ask.parameters)),
        "return_num_output_tokens": True,
    }
    target = f"{url}/v2/models/{model}/generate"
    order = urllib.request.Request(target, json.dumps(body).encode(), method="POST")
    with urllib.request.urlopen(order, timeout=TIMEOUT_S) as answer:
        return int(json.load(answer)["num_output_tokens"])


def _exactly(tokens: int) -> dict[str, Any]:
    return {"max_tokens": tokens, "ignore_eos": True, "temperature": 0.0}


def _prose(seed: str, words: int) -> str:
    drawn = random.Random(seed)
    return " ".join(drawn.choice(WORDS) for _ in range(words)) + " "


def _small(drawn: np.random.Generator, *shape: int) -> np.ndarray[Any, Any]:
    return (0.01 * drawn.standard_normal(shape)).astype(np.float32)


if __name__ == "__main__":
    main()
