"""One HTML page about a recording, with its pictures inside: nothing is loaded from elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ge_backend.executor.protocol.messages import PastRun
from ge_tools import version
from ge_tools.page.drawing import colours_of, svg
from ge_tools.page.lanes import draw_busy, draw_lanes, draw_pool, pooled
from ge_tools.page.numbers import host_latencies, run_latencies, served_models
from ge_tools.page.recording import Recording
from ge_tools.page.spent import draw_latencies, draw_parts
from ge_tools.page.text import draw_cache, draw_tokens
from ge_tools.page.traffic import draw_padding, draw_rates, draw_shapes, shapes_height
from ge_tools.watch.executors import DeviceRuns
from ge_tools.watch.models import ModelNumbers
from ge_tools.watch.text import text_lines

__all__ = ["Picture", "pictures", "render"]

TEMPLATE = Path(__file__).with_name("report.html")


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A picture of the page: its title, what it shows, and what draws it into a figure."""

    title: str
    text: str
    height_inches: float
    draw: Callable[[Any], None]


def render(recording: Recording) -> str:
    """Return the page; every text in it is escaped, names of models too."""
    import jinja2
    import markupsafe

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    models = served_models(recording)
    page: str = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        recording=recording,
        began=time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(recording.began_s)),
        version=version(),
        models=models,
        steps={model.model: model.steps_ms for model in models if model.steps_ms},
        texts=text_lines(recording.first, recording.last),
        hosts=host_latencies(recording),
        runs=run_latencies(_runs(recording)),
        missed=sum(device.missed for device in recording.devices),
        pictures=[
            (picture, markupsafe.Markup(drawn))  # noqa: S704 - made by us
            for index, picture in enumerate(pictures(recording))
            for drawn in [svg(picture.draw, picture.height_inches, name=f"picture-{index}")]
        ],
    )
    return page


def pictures(recording: Recording) -> list[Picture]:
    """Return the pictures that this recording has something for, in the page's order."""
    models = served_models(recording)
    names = {model.model for model in models} | {run.model for run in _runs(recording)}
    names |= {line.model for line in text_lines(recording.first, recording.last)}
    colours = colours_of(sorted(names))
    return [
        *_of_metrics(recording, models, colours),
        *_of_text(recording, colours),
        *_of_latency(recording),
        *_of_executors(recording, colours),
        *_of_pool(recording),
    ]


def _of_metrics(
    recording: Recording, models: Sequence[ModelNumbers], colours: Mapping[str, str]
) -> Iterator[Picture]:
    names = [model.model for model in models if "/" not in model.model]
    ran = [model for model in models if model.runs]
    padded = [model for model in models if model.padding is not None]
    engines = [f"{model.model} in {model.engine}" for model in models if model.engine]
    others = [f"{model.model}: {', '.join(model.not_so)}" for model in models if model.not_so]
    yield Picture(
        title="Requests",
        text="Taken by each model, between two looks at its metrics. Further down, a name with a "
        "slash is a step of a fused ensemble."
        + (f" Tested and found otherwise than assumed: {'; '.join(others)}." if others else ""),
        height_inches=2.8,
        draw=lambda figure: draw_rates(figure, recording.readings, names, colours),
    )
    if ran:
        yield Picture(
            title="Lengths and buckets",
            text="How long the rows were that clients sent, and the shapes that they ran in. "
            "Engines that take any shape run at the rows' own; there a bucket is the nearest "
            "measured one.",
            height_inches=shapes_height(ran),
            draw=lambda figure: draw_shapes(figure, ran, colours),
        )
    if padded:
        yield Picture(
            title="Padding",
            text="Elements (rows times sizes; tokens, for text) that ran for each one sent.",
            height_inches=1.0 + 0.75 * len(padded),
            draw=lambda figure: draw_padding(figure, padded),
        )
    if ran:
        yield Picture(
            title="Where the time goes",
            text="Per request, summed. An instance reads, plans, stages, waits and splits one "
            "batch after the other; queue and run are in the executor while it waits, and may be "
            "longer than the wait where several runs go side by side."
            + (f" Runs: {'; '.join(engines)}." if engines else ""),
            height_inches=1.0 + 0.6 * len(ran),
            draw=lambda figure: draw_parts(figure, ran),
        )


def _of_text(recording: Recording, colours: Mapping[str, str]) -> Iterator[Picture]:
    if not text_lines(recording.first, recording.last):
        return
    yield Picture(
        title="Tokens",
        text="Drawn by the models that generate text, and taken in with prompts, between two looks "
        "at their metrics.",
        height_inches=3.6,
        draw=lambda figure: draw_tokens(figure, recording.readings, colours),
    )
    yield Picture(
        title="Cache",
        text="How much of the key-value cache texts had, and how many were in the making; dotted: "
        "how many waited. Where it is full while texts wait, more `kv_cache_bytes` would let more "
        "run at once.",
        height_inches=3.6,
        draw=lambda figure: draw_cache(figure, recording.readings, colours),
    )


def _of_latency(recording: Recording) -> Iterator[Picture]:
    hosts = [host for host in host_latencies(recording) if host.quantiles_ms]
    runs = run_latencies(_runs(recording))
    if hosts or runs:
        yield Picture(
            title="Latency",
            text="Of whole requests where the server keeps percentiles, over its own sliding "
            "window; of runs from their coming to the executor until their end.",
            height_inches=1.1 + 0.32 * (len(hosts) + len(runs)),
            draw=lambda figure: draw_latencies(figure, hosts, runs),
        )


def _of_executors(recording: Recording, colours: Mapping[str, str]) -> Iterator[Picture]:
    devices = [device for device in recording.devices if device.runs]
    begin_ns, end_ns = (int(1e9 * r.at_s) for r in (recording.first, recording.last))
    if devices:
        yield Picture(
            title="Lanes",
            text="How many of each device's lanes ran. Where the line is at the number of its "
            "lanes, more requests make a queue.",
            height_inches=2.4,
            draw=lambda figure: draw_busy(figure, devices, begin_ns, end_ns),
        )
    for device in devices:
        yield _timeline(device, colours)


def _timeline(device: DeviceRuns, colours: Mapping[str, str]) -> Picture:
    lanes = len({run.lane for run in device.runs})
    return Picture(
        title=f"Timeline of the executor of {device.device}",
        text="A bar is a run, with its bucket. It is solid as far as its rows were real; the "
        "faint rest filled the bucket up. A step of text generation has its texts and their "
        "tokens in place of a bucket. Below: runs that waited for a lane or for workspace.",
        height_inches=2.2 + 0.5 * lanes,
        draw=lambda figure: draw_lanes(figure, device, colours),
    )


def _of_pool(recording: Recording) -> Iterator[Picture]:
    if pooled(recording.readings):
        yield Picture(
            title="Workspace pool",
            text="Read once a second: what lies between two looks is not seen, the peak is exact.",
            height_inches=2.4,
            draw=lambda figure: draw_pool(figure, recording.readings),
        )


def _runs(recording: Recording) -> list[PastRun]:
    return [run for device in recording.devices for run in device.runs]
