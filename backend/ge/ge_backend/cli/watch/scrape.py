"""Reading a running server's metrics."""

from __future__ import annotations

import time
import urllib.error
import urllib.request

from ge_backend.cli.watch.readings import Reading
from ge_backend.errors import DeviceUnavailable, ServerError

__all__ = ["parse", "scrape"]

TIMEOUT_S = 5.0
# Ours, and what the host says of requests.
KEPT = ("ge_", "nv_inference_")


def scrape(url: str) -> Reading:
    """Return what a server's `/metrics` says of its requests and of this backend now.

    Raises:
        ServerError: nobody answers there.
        DeviceUnavailable: the library that reads the format is missing.
    """
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:  # noqa: S310 - a user's url
            text = answer.read().decode()
    except (OSError, ValueError, urllib.error.URLError) as error:
        raise ServerError(
            f"no metrics at {url}: {error}; expected a running server's metrics port, such as "
            "http://localhost:8002/metrics"
        ) from error
    return parse(text, at_s=time.monotonic())


def parse(text: str, *, at_s: float) -> Reading:
    """Return the series of interest of a text in Prometheus' format.

    Raises:
        DeviceUnavailable: the library that reads the format is missing.
    """
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError as error:
        raise DeviceUnavailable(
            f"metrics are read with prometheus-client ({error}); "
            "pip install 'triton-ge-backend[tools]'"
        ) from error
    return Reading(
        at_s=at_s,
        values={
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name.startswith(KEPT)
        },
    )
