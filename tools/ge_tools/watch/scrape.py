"""Reading a running server's metrics."""

from __future__ import annotations

import http.client
import math
import time
import urllib.request
from urllib.parse import urlsplit

from ge_backend.errors import DeviceUnavailable, ServerError
from ge_tools.watch.readings import Reading

__all__ = ["parse", "scrape", "whole_url"]

TIMEOUT_S = 5.0
WHERE = "--url names another, `ge-backend serve` prints it"
# Ours, and what the host says of requests.
KEPT = ("ge_", "nv_inference_")


def scrape(url: str) -> Reading:
    """Return what a server's `/metrics` says of its requests and of this backend now.

    Of its URL `HOST:PORT` is enough.

    Raises:
        ServerError: no answer from there, or with nothing or something else.
        DeviceUnavailable: the library that reads the format is missing.
    """
    whole = whole_url(url)
    try:
        # The user's own server, so by no proxy of the environment.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(whole, timeout=TIMEOUT_S) as answer:
            text = answer.read().decode()
        if text.strip():
            return parse(text, at_s=time.monotonic())
    except http.client.HTTPException as error:  # its text may be bytes of another protocol
        raise _none(whole, f"the answer is not in HTTP/1.1: {error!r}") from error
    except (OSError, ValueError) as error:
        raise _none(whole, str(error)) from error
    raise _none(whole, "the answer is empty")


def _none(whole: str, why: str) -> ServerError:
    return ServerError(
        f"no metrics at {whole}: {why}; expected a running server's metrics port; {WHERE}"
    )


def whole_url(url: str) -> str:
    """Return a url with what may be left out of it: the scheme, and the path `/metrics`.

    Raises:
        ServerError: its host or its port can be none.
    """
    whole = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(whole)
        host, _ = parts.hostname or "", parts.port
        host.encode("idna")
    except ValueError as error:
        raise _none(whole, str(error)) from error
    return whole if parts.path.strip("/") else f"{whole.rstrip('/')}/metrics"


def parse(text: str, *, at_s: float) -> Reading:
    """Return the series of interest of a text in Prometheus' format.

    Raises:
        DeviceUnavailable: the library that reads the format is missing.
        ValueError: the text is not in that format.
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
            if sample.name.startswith(KEPT) and not math.isnan(sample.value)  # of a past model
        },
    )
