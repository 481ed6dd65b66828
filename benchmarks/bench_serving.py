"""Our backend against its rivals and the in-process ceiling, on the real server.

One server has all models loaded. The systems take turns in short windows, several rounds, so that
whatever else this machine does hits all of them alike; ratios are taken within a round. Then
requests come at random, as a Poisson process. At the end: which aims are met.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path

from benchmarks.aims import aims, verdicts
from benchmarks.ceiling import Ceiling
from benchmarks.client import BenchmarkError
from benchmarks.expected import expected_of, keep, moved, ratios
from benchmarks.load import Report
from benchmarks.mixes import MIXES
from benchmarks.poisson import Poisson, poisson, poisson_table
from benchmarks.pool import load_pools
from benchmarks.random_encoder import SIZES
from benchmarks.report import json_lines, machine, plot, table
from benchmarks.results import CEILING, Result, Sample, results
from benchmarks.rivals.forward import ENGINES
from benchmarks.served import MINILM, POOL_ROWS, Served, Traffic, Window, make_traffic, serve
from benchmarks.systems import CPP_ONNX, OURS_BOUNDED, OURS_OPENVINO, System, absent, systems
from ge_tools.tritonserver.installation import find_server
from ge_tools.watch.models import model_numbers
from ge_tools.watch.readings import Reading
from ge_tools.watch.scrape import scrape

__all__ = ["Settings", "main"]

CEILING_ROWS = 256
POISSON_ROUNDS = 2
# A queue needs more time to show itself than a closed loop does to settle.
POISSON_WINDOWS = 2
# What a run consists of: a whole one unless told otherwise, and a quick one.
WHOLE = {"mix": list(MIXES), "concurrency": [1, 8, 32, 64], "rounds": 3, "window": 2.0}
QUICK = {"mix": ["lognormal"], "concurrency": [1, 32], "rounds": 2, "window": 1.0}
# Cores that other programs may use in a cell of a quick run that is compared with an earlier one.
MOST_OTHERS = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is run; times in seconds.

    Attributes:
        warm_s: each system is asked for so long, with the fewest and the most requests in flight,
            before anything counts.
        bound_s: no further round begins that would end later than this; 0: none is left out.
        brief: no requests at random, no ceiling, no system that takes long to load, and of a rival
            the layout that fits the cell.
        device: where all systems run. On an accelerator there is no ceiling.
        preferred: of `ge_bounded`, which is left out with 0.
        encoder: as `make_traffic` takes it.
    """

    mixes: tuple[str, ...]
    concurrencies: tuple[int, ...]
    rounds: int
    settle_s: float
    measure_s: float
    instances: int
    protocol: str
    seed: int
    warm_s: float = 2.0
    bound_s: float = 0.0
    brief: bool = False
    device: str = "cpu"
    encoder: str = MINILM
    preferred: int = 0

    @property
    def bare(self) -> bool:
        """Whether only closed loops are run: no ceiling, no requests at random."""
        return self.brief or self.device != "cpu"


def main() -> None:
    """Run the benchmark for each engine and write table, JSON lines and plot."""
    options = _parse(sys.argv[1:])
    settings = _settings(options)
    options.output.mkdir(parents=True, exist_ok=True)
    context = machine()
    print(", ".join(f"{key} {value}" for key, value in context.items()))
    for engine in options.engine:
        found, offered, failed = run(engine, settings)
        for mix in settings.mixes:
            title = f"\n{engine}, {MIXES[mix].help}, over {settings.protocol}"
            print(table(title, [result for result in found if result.mix == mix]), flush=True)
        if offered:
            print(f"\n{engine}, Poisson, over gRPC\n{poisson_table(offered)}")
        print(f"\n{verdicts(aims(found, offered, bf16=engine.endswith('bf16')))}", flush=True)
        _write(found, engine, context, options.output)
        if failed is not None:
            raise failed
        if options.quick:
            if (busy := max((result.others_cpu for result in found), default=0.0)) > MOST_OTHERS:
                print(
                    f"{engine}: nothing is compared, as other programs used {busy:.1f} cores; run "
                    "it again on a quiet machine"
                )
                continue
            _compare(engine, str(context["cpu"]), found, keep_it=options.keep)


def _compare(engine: str, processor: str, found: list[Result], *, keep_it: bool) -> None:
    """Say what of a quick run is not as expected, or expect it from now on."""
    seen = ratios(found)
    if keep_it:
        keep(engine, processor, seen)
        return
    expected = expected_of(engine, processor)
    if not expected:
        print(
            f"{engine}: nothing is expected of it on {processor} yet; --keep expects from now on "
            "what was found"
        )
        return
    lines = moved(seen, expected)
    print("\n".join(lines) if lines else f"{engine}: {len(expected)} ratios are as expected")


def run(
    engine: str, settings: Settings
) -> tuple[list[Result], list[Poisson], BenchmarkError | None]:
    """Return what one engine's closed loops and its open ones gave, and what the latter failed by.

    The former are worth keeping then: they took a quarter of an hour.
    """
    begun = time.monotonic()
    missing = absent(find_server(), settings.device)
    if settings.encoder != MINILM:
        missing |= dict.fromkeys((OURS_OPENVINO, CPP_ONNX), f"{settings.encoder} has no ONNX file")
    if settings.brief:
        missing[OURS_OPENVINO] = "it takes long to load"
    for name, reason in missing.items():
        print(f"{name} is left out: {reason}")
    served_systems = systems(
        settings.instances,
        without=missing,
        device=settings.device,
        preferred=settings.preferred,
    )
    with tempfile.TemporaryDirectory(prefix="ge-bench-") as temporary:
        traffic = make_traffic(
            engine, settings.mixes, settings.seed, Path(temporary), encoder=settings.encoder
        )
        with (
            nullcontext()
            if settings.bare
            else closing(_ceiling(engine, traffic, settings)) as ceiling,
            serve(
                served_systems, engine, traffic, settings.protocol, device=settings.device
            ) as served,
        ):
            _say(f"{engine}: warming")
            _warm(served, served_systems, settings)
            samples: list[Sample] = []
            before = scrape(served.server.metrics)
            round_s, random_s = 0.0, 0.0 if settings.bare else _poisson_s(settings)
            for number in range(settings.rounds):
                started = time.monotonic()
                if number and 0 < settings.bound_s < started - begun + round_s + random_s:
                    print(f"{engine}: {number} of {settings.rounds} rounds, for lack of time")
                    break
                _say(f"{engine}: round {number + 1} of {settings.rounds}")
                samples += _round(number, served, served_systems, settings)
                if ceiling is not None:
                    for mix in settings.mixes:
                        samples += _ceiling_samples(number, mix, ceiling)
                round_s = time.monotonic() - started
            print(_plan_errors(before, scrape(served.server.metrics)), flush=True)
            found = results(samples)
            if settings.bare:
                return found, [], None
            _say(f"{engine}: requests at random")
            offered: list[Poisson] = []
            try:
                offered += poisson(
                    served.server.grpc,
                    found,
                    load_pools(traffic.pools),
                    rounds=POISSON_ROUNDS,
                    seconds=POISSON_WINDOWS * settings.measure_s,
                    seed=settings.seed,
                )
            except BenchmarkError as error:
                return found, offered, error
            return found, offered, None


def _plan_errors(before: Reading, after: Reading) -> str:
    """Return how far each model's runs were off from what they were planned to take."""
    numbers = model_numbers(before, after)
    shown = [f"{m.model} {m.plan_error:.0%}" for m in numbers if m.plan_error is not None]
    return f"runs took longer or shorter than planned by: {', '.join(shown) or 'nothing to say'}"


def _poisson_s(settings: Settings) -> float:
    """Return about how long the open loops take."""
    served = systems(settings.instances, cores=1, preferred=settings.preferred)
    windows = POISSON_ROUNDS * len(settings.mixes) * len(served)
    return windows * POISSON_WINDOWS * settings.measure_s


def _warm(served: Served, served_systems: tuple[System, ...], settings: Settings) -> None:
    """Let every system find out what only requests show, as in a server that was not just started.

    Rivals have shapes to make ready, too; ours learns which runs gain from all cores.
    """
    for mix in settings.mixes:
        for concurrency in {min(settings.concurrencies), max(settings.concurrencies)}:
            for system in _compared(served_systems, concurrency, settings):
                served.measure(
                    Window(
                        system=system,
                        mix=mix,
                        concurrency=concurrency,
                        offset=0,
                        settle_s=settings.settle_s,
                        measure_s=settings.warm_s,
                    )
                )


def _compared(
    served_systems: Sequence[System], concurrency: int, settings: Settings
) -> list[System]:
    """Return what a cell has windows of: in a brief run, of a rival the layout that fits the cell.

    That is one instance on all cores for requests that come alone, else one instance per core.
    """
    if not settings.brief or settings.device != "cpu":
        return list(served_systems)
    return [
        system
        for system in served_systems
        if system.ours or (system.instances == 1) == (concurrency == 1)
    ]


def _round(
    number: int, served: Served, served_systems: tuple[System, ...], settings: Settings
) -> Iterator[Sample]:
    """Yield one window per cell and system; the order within a cell differs from round to round."""
    order = random.Random(settings.seed + number)
    offset = order.randrange(POOL_ROWS)
    for mix in settings.mixes:
        for concurrency in settings.concurrencies:
            compared = _compared(served_systems, concurrency, settings)
            for system in order.sample(compared, len(compared)):
                report = served.measure(
                    Window(
                        system=system,
                        mix=mix,
                        concurrency=concurrency,
                        offset=offset,
                        settle_s=settings.settle_s,
                        measure_s=settings.measure_s,
                    )
                )
                yield _sample(report, system, mix, concurrency, number)


def _sample(report: Report, system: System, mix: str, concurrency: int, number: int) -> Sample:
    return Sample(
        system=system.name,
        layout=f"{system.instances}x{system.threads}" if system.threads else "",
        mix=mix,
        concurrency=concurrency,
        round_number=number,
        throughput=report.throughput,
        requests=report.requests,
        wall_s=report.wall_s,
        latencies_ms=report.latencies_ms,
        cpu_s=report.cpu_s,
    )


def _ceiling(engine: str, traffic: Traffic, settings: Settings) -> Ceiling:
    ceiling = Ceiling(engine, traffic.encoder[ENGINES[engine]], traffic.pools)
    for mix in settings.mixes:
        best = ceiling.search(mix)[0]
        _say(f"{engine}: ceiling of {mix} near {best.throughput:.0f}/s, {best.layout} {best.cut}")
    return ceiling


def _ceiling_samples(number: int, mix: str, ceiling: Ceiling) -> Iterator[Sample]:
    for done in ceiling.measure(mix, CEILING_ROWS):
        yield Sample(
            system=CEILING,
            layout=f"{done.layout}, {done.cut}",
            mix=mix,
            concurrency=0,
            round_number=number,
            throughput=done.throughput,
            requests=done.rows,
            wall_s=done.wall_s,
            latencies_ms=(),
            cpu_s={"ceiling": done.cpu_s, "others": done.others_s},
        )


def _write(found: list[Result], engine: str, context: dict[str, object], output: Path) -> None:
    path = output / f"serving-{engine}.jsonl"
    path.write_text(json_lines(found, {**context, "engine": engine}))
    _say(f"wrote {path}")
    picture = path.with_suffix(".png")
    if plot(f"{engine}, {context['cores']} cores", found, picture):
        _say(f"wrote {picture}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench_serving", description=__doc__)
    add = parser.add_argument
    add("--engine", nargs="+", choices=tuple(ENGINES), default=["onnx"])
    add("--mix", nargs="+", choices=tuple(MIXES))
    add("--concurrency", nargs="+", type=int)
    add("--rounds", type=int)
    add("--window", type=float, help="seconds measured per system and round")
    add("--instances", type=int, default=2, help="instances of our backend")
    add(
        "--preferred",
        type=int,
        default=0,
        metavar="N",
        help=f"adds {OURS_BOUNDED}, with this preferred_batch_size",
    )
    add("--protocol", choices=("http", "grpc"), default="http")
    add("--seed", type=int, default=1)
    add("--minutes", type=float, default=0, help="of each engine; leaves out rounds at the end")
    add("--device", default="cpu", help="of all systems; with torch also cuda:0")
    add("--encoder", choices=(MINILM, *SIZES), default=MINILM, help="others have random weights")
    add("--output", type=Path, default=Path(".cache/bench"))
    add("--quick", action="store_true", help="one mix, short windows; says what has moved")
    add("--keep", action="store_true", help="with --quick: expect from now on what was found")
    options = parser.parse_args(arguments)
    if "onnx" in options.engine and (options.device != "cpu" or options.encoder != MINILM):
        parser.error(
            "--device and --encoder are for torch: rivals run ONNX on the CPU, and encoders of "
            "random weights have no ONNX file; say --engine torch or torch-bf16"
        )
    for name, value in (QUICK if options.quick else WHOLE).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
        elif options.quick:
            parser.error(f"--quick decides --{name} itself: leave one of the two out")
    return options


def _settings(options: argparse.Namespace) -> Settings:
    return Settings(
        mixes=tuple(options.mix),
        concurrencies=tuple(options.concurrency),
        rounds=options.rounds,
        settle_s=0.4,
        measure_s=options.window,
        warm_s=1.0 if options.quick else 2.0,
        instances=options.instances,
        preferred=options.preferred,
        protocol=options.protocol,
        seed=options.seed,
        bound_s=60 * options.minutes,
        brief=options.quick,
        device=options.device,
        encoder=options.encoder,
    )


if __name__ == "__main__":
    main()
