"""Watching a server for a while: its metrics once a second, and what its executors run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ge_backend.errors import ServerError
from ge_tools.watch.executors import DeviceRuns, RunWatch
from ge_tools.watch.readings import Reading, grown
from ge_tools.watch.scrape import scrape, whole_url

__all__ = ["Recording", "record"]

LOOK_EVERY_S = 1.0
NOT_HERE = (
    "No executor of this server was found on this machine: it runs elsewhere, in a container, as "
    "another user, or with `executor: inline`. What the executors ran is left out."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What was seen of a server.

    Attributes:
        url: of its metrics.
        began_s: when, seconds since the epoch.
        readings: of its metrics, two at least, by `time.monotonic`.
        devices: what its executors ran meanwhile, by CLOCK_MONOTONIC, which is the same clock.
        note: why something is missing there; "" if nothing is.
    """

    url: str
    began_s: float
    readings: tuple[Reading, ...]
    devices: tuple[DeviceRuns, ...]
    note: str = ""

    @property
    def first(self) -> Reading:
        """The metrics when it began."""
        return self.readings[0]

    @property
    def last(self) -> Reading:
        """The metrics when it ended."""
        return self.readings[-1]

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.last.at_s - self.first.at_s


def record(url: str, seconds: float, say: Callable[[str], None]) -> Recording:
    """Watch a server; say how it goes, about once a second. If it ends, the recording does too.

    `url` is of its metrics; `HOST:PORT` is enough.

    Raises:
        ServerError: nothing answers at `url`, or no model of this backend has done anything, to the
            end or until the server ended.
        DeviceUnavailable: the library that reads metrics is missing.
    """
    url = whole_url(url)
    began_s, ended = time.time(), ""
    watch = RunWatch(url)
    try:
        readings = [scrape(url)]
        end_s = readings[0].at_s + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            time.sleep(min(LOOK_EVERY_S, left_s))
            try:
                readings.append(scrape(url))
            except ServerError as error:
                if len(readings) == 1:
                    raise
                ended = f"recording ends early: {error}"
                break
            runs = watch.look()
            passed = readings[-1].at_s - readings[0].at_s
            say(f"{passed:.0f} of {seconds:g} s: {_served(readings):.0f} requests, {runs} runs")
    finally:
        devices = watch.close()
    ran = any(device.runs or device.missed for device in devices)
    if not (ran or _served(readings) or _text_steps(readings)):
        raise ServerError(
            "no model of this backend took a request or ran in "
            f"{readings[-1].at_s - readings[0].at_s:.0f} s, by {url}; there is nothing to report: "
            + (f"the {ended}" if ended else "send requests meanwhile, or watch longer (--seconds)")
        )
    note = (f"The {ended}" if ended else watch.note) or ("" if devices else NOT_HERE)
    return Recording(
        url=url, began_s=began_s, readings=tuple(readings), devices=tuple(devices), note=note
    )


def _served(readings: list[Reading]) -> float:
    """Return how many requests models took; steps of a fused ensemble are not counted again."""
    served = grown(readings[0], readings[-1], "ge_requests_total", "model")
    return sum(count for model, count in served.items() if "/" not in model)


def _text_steps(readings: list[Reading]) -> float:
    """Return how many steps texts took, which may have been asked for long before."""
    return sum(grown(readings[0], readings[-1], "ge_text_steps_total", "model").values())
