"""Reads what the backend counted from the host's own `/metrics`."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

__all__ = ["Counters", "read", "wait_for"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """The sums of one model over all its instances.

    Attributes:
        buckets: sub-batches by the bucket that they ran in.
        real, run, longest: elements that clients sent; that ran, padding included; and that would
            have run with every batch padded to its longest row.
    """

    requests: int
    batches: int
    buckets: Mapping[str, int]
    real: int
    run: int
    longest: int

    def since(self, before: Counters) -> Counters:
        """Return what was counted between two readings."""
        grown = {name: count - before.buckets.get(name, 0) for name, count in self.buckets.items()}
        return Counters(
            requests=self.requests - before.requests,
            batches=self.batches - before.batches,
            buckets={name: count for name, count in grown.items() if count},
            real=self.real - before.real,
            run=self.run - before.run,
            longest=self.longest - before.longest,
        )

    @property
    def padding_saved(self) -> float:
        """The part of pad-to-longest's padding that did not run: 1 is all, 0 none."""
        padding = self.longest - self.real
        return (self.longest - self.run) / padding if padding else 0.0


def read(text: str, model: str) -> Counters:
    """Return one model's counters from the text of `/metrics`; what is not there counts as 0."""
    sums: dict[str, int] = {}
    buckets: dict[str, int] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels.get("model") != model:
                continue
            sums[sample.name] = sums.get(sample.name, 0) + round(sample.value)
            if sample.name == "ge_sub_batches_total":
                bucket = sample.labels["bucket"]
                buckets[bucket] = buckets.get(bucket, 0) + round(sample.value)
    return Counters(
        requests=sums.get("ge_requests_total", 0),
        batches=sums.get("ge_batches_total", 0),
        buckets=buckets,
        real=sums.get("ge_elements_real_total", 0),
        run=sums.get("ge_elements_run_total", 0),
        longest=sums.get("ge_elements_longest_total", 0),
    )


def wait_for(url: str, model: str, requests: int, *, timeout_s: float = 5.0) -> Counters:
    """Return the model's counters once they show so many requests, or as they are at the timeout.

    `url` is the whole address, `http://host:port/metrics`. The backend publishes after it has
    replied, so the last batch may be a moment late.
    """
    give_up = time.monotonic() + timeout_s
    while True:
        with urllib.request.urlopen(url, timeout=timeout_s) as page:  # noqa: S310 - our own server
            counters = read(page.read().decode(), model)
        if counters.requests >= requests or time.monotonic() > give_up:
            return counters
        time.sleep(0.05)
