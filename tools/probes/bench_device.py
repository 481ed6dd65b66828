"""One device, no server: batches planned into captured buckets against batches padded and run.

Both ways get the same batches of an encoder's requests whose lengths are log-normal, and take turns
within each round; ratios are taken within a round. `python -m tools.probes.bench_device` runs on
the CPU, `--device cuda:0` on a GPU; nothing is downloaded, and nothing but torch and numpy is
needed.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from benchmarks.encoder.mixes import MIXES, draw
from benchmarks.rivals.forward import Ids, Rows, pad

from .encoder_program import INPUTS, OUTPUT, Encoder, Size, export
from .in_process import open_local

__all__ = ["Result", "Settings", "Window", "main", "results", "table"]

RIVAL = "padded to longest, eager"
LENGTHS = (16, 24, 32, 48, 64, 96, 128, 192, 256)
# Between unit-length vectors: the largest difference of any element that is still the same answer.
TOLERANCES = {"origin": 1e-3, "bf16": 5e-2, "fp16": 1e-2}
CHECKED_EVERY = 16

Embed = Callable[[Sequence[Ids]], list[Rows]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is run; `batch` is how many requests come at once."""

    device: str
    precision: str
    batch: int
    batches: int
    rounds: int
    seed: int
    inline: bool
    size: Size


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """All batches once, one way; seconds of each batch."""

    way: str
    round_number: int
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One way: medians over the rounds; `ratio` is its speed by the rival's."""

    way: str
    requests_per_s: float
    batch_ms: float
    ratio: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, check every answer that has a truth, and print."""
    settings = _settings(sys.argv[1:] if arguments is None else arguments)
    rows = draw(MIXES["lognormal"], settings.batch * settings.batches, settings.seed)
    rows = [row[: settings.size.longest] % settings.size.vocabulary for row in rows]
    encoder = Encoder(settings.size, settings.seed)
    truths = _truths(encoder, rows)
    with _ways(settings, encoder) as ways:
        for name, embed in ways.items():
            _check(name, embed, rows, truths, settings)
        windows = [
            _window(name, number, ways[name], rows, settings.batch)
            for number in range(settings.rounds)
            for name in _turn(list(ways), number)
        ]
    context = _context(settings)
    found = results(windows, settings.batch)
    print(table(found))
    for result in found:
        print(json.dumps({"bench": "device", **context, **asdict(result)}))


def results(windows: Sequence[Window], batch: int) -> list[Result]:
    """Return one result per way, the rival first."""
    names = sorted({window.way for window in windows}, key=lambda name: (name != RIVAL, name))
    totals = {(w.way, w.round_number): sum(w.seconds) for w in windows}
    rounds = sorted({window.round_number for window in windows})
    return [
        Result(
            way=name,
            requests_per_s=statistics.median(
                batch * len(w.seconds) / sum(w.seconds) for w in windows if w.way == name
            ),
            batch_ms=1e3
            * statistics.median(s for w in windows if w.way == name for s in w.seconds),
            ratio=statistics.median(totals[RIVAL, r] / totals[name, r] for r in rounds),
        )
        for name in names
    ]


def table(found: Sequence[Result]) -> str:
    """Return an aligned table."""
    lines = [f"{'':28}{'req/s':>10}{'ms per batch':>14}{'x rival':>10}"]
    lines += [
        f"{r.way:28}{r.requests_per_s:>10.0f}{r.batch_ms:>14.2f}{r.ratio:>10.2f}" for r in found
    ]
    return "\n".join(lines)


@contextmanager
def _ways(settings: Settings, encoder: Encoder) -> Iterator[dict[str, Embed]]:
    """Open every way to run the encoder on the device."""
    modes = ("graphs", "eager") if settings.device != "cpu" else ("graphs",)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ge-bench-")))
        model = folder / "model.pt2"
        export(encoder, settings.size, model)
        ways: dict[str, Embed] = {RIVAL: _padded(encoder, settings)}
        for mode in modes:
            started = time.perf_counter()
            name = f"planned, {mode}" if len(modes) > 1 else "planned"
            ways[name] = stack.enter_context(_planned(model, mode, settings))
            print(f"{name}: ready in {time.perf_counter() - started:.1f} s", flush=True)
        yield ways


def _padded(encoder: Encoder, settings: Settings) -> Embed:
    """Return what a plain Python model does with a dynamic batch."""
    kinds = {"origin": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    module = Encoder(settings.size, settings.seed)
    module.load_state_dict(encoder.state_dict())
    module.to(device=settings.device, dtype=kinds[settings.precision])

    def embed(batch: Sequence[Ids]) -> list[Rows]:
        with torch.inference_mode():
            tensors = (torch.from_numpy(array).to(settings.device) for array in pad(list(batch)))
            return list(module(*tensors).cpu().numpy())

    return embed


@contextmanager
def _planned(model: Path, mode: str, settings: Settings) -> Iterator[Embed]:
    lengths = [length for length in LENGTHS if length < settings.size.longest]
    parameters = {
        "precision": settings.precision,
        "torch.mode": mode,
        "buckets.sequence": ",".join(map(str, [*lengths, settings.size.longest])),
    }
    opened = open_local(
        model,
        device=settings.device,
        rows=settings.batch,
        parameters=parameters,
        inline=settings.inline,
    )
    with opened as local:
        print(f"{local.buckets} buckets", flush=True)

        def embed(batch: Sequence[Ids]) -> list[Rows]:
            answers = local.run([{INPUTS[0]: ids[None]} for ids in batch])
            return [answer[OUTPUT][0] for answer in answers]

        yield embed


def _truths(encoder: Encoder, rows: Sequence[Ids]) -> dict[int, Rows]:
    """Return what some rows give alone, unpadded, in FP32 on the CPU."""
    with torch.inference_mode():
        return {
            at: encoder(*map(torch.from_numpy, pad([rows[at]])))[0].numpy()
            for at in range(0, len(rows), CHECKED_EVERY)
        }


def _check(
    name: str, embed: Embed, rows: Sequence[Ids], truths: dict[int, Rows], settings: Settings
) -> None:
    """Run everything once, which also warms up; a wrong answer ends the benchmark."""
    found = [answer for batch in _batches(rows, settings.batch) for answer in embed(batch)]
    worst = max(float(np.abs(found[at] - truth).max()) for at, truth in truths.items())
    if not worst <= TOLERANCES[settings.precision]:
        raise SystemExit(f"{name} is wrong by up to {worst:.1e} on {settings.device}")
    print(f"{name}: right within {worst:.1e}", flush=True)


def _window(name: str, number: int, embed: Embed, rows: Sequence[Ids], batch: int) -> Window:
    seconds: list[float] = []
    for requests in _batches(rows, batch):
        started = time.perf_counter()
        embed(requests)
        seconds.append(time.perf_counter() - started)
    return Window(way=name, round_number=number, seconds=tuple(seconds))


def _batches(rows: Sequence[Ids], batch: int) -> Iterator[Sequence[Ids]]:
    return (rows[at : at + batch] for at in range(0, len(rows), batch))


def _turn(names: list[str], number: int) -> list[str]:
    """Return the names in another order each round."""
    at = number % len(names)
    return names[at:] + names[:at]


def _context(settings: Settings) -> dict[str, object]:
    device = settings.device
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else platform.machine()
    context = {
        "device": device,
        "name": name,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "precision": settings.precision,
        "batch": settings.batch,
        **asdict(settings.size),
    }
    print(", ".join(f"{key} {value}" for key, value in context.items()))
    return context


def _settings(arguments: Sequence[str]) -> Settings:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu, cuda:0, …")
    parser.add_argument("--precision", default="origin", choices=sorted(TOLERANCES))
    parser.add_argument("--batch", type=int, default=32, help="requests that come at once")
    parser.add_argument("--batches", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inline", action="store_true", help="no executor process")
    for name, value in asdict(Size()).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args(arguments)
    return Settings(
        device=options.device,
        precision=options.precision,
        batch=options.batch,
        batches=options.batches,
        rounds=options.rounds,
        seed=options.seed,
        inline=options.inline,
        size=Size(**{name: getattr(options, name) for name in asdict(Size())}),
    )


if __name__ == "__main__":
    main()
