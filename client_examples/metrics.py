"""What the backend counted, from the host's own `/metrics`: one request, and what it changed.

python client_examples/metrics.py --url localhost:9001 --metrics-url http://localhost:9002/metrics
"""

from __future__ import annotations

import argparse
import re
import sys
import time
import urllib.request

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

import connection

MODEL = "mean_embedding"
# The backend hands its sums to the host four times a second, one by one; a busy machine is slower.
PUBLISHED_S, PATIENCE_S = 0.5, 5.0


def read(url: str) -> dict[str, float]:
    """Return the backend's counters of the model, by name and bucket."""
    try:
        with urllib.request.urlopen(url) as page:  # noqa: S310 - the address that the user gave
            families = list(text_string_to_metric_families(page.read().decode()))
    except (OSError, ValueError) as error:
        sys.exit(f"no metrics at {url} ({error}); `ge-backend serve` prints what --metrics-url is")
    return {
        f"{sample.name} {sample.labels.get('bucket', '')}".strip(): sample.value
        for family in families
        for sample in family.samples
        if re.fullmatch("ge_.*_total", sample.name) and sample.labels["model"] == MODEL
    }


def settled(url: str, before: dict[str, float] | None = None) -> dict[str, float]:
    """Return the counters once two looks in a row find the same, and other ones than before."""
    end_s = time.monotonic() + PATIENCE_S
    last, now = None, read(url)
    while (now != last or now == before) and time.monotonic() < end_s:
        time.sleep(PUBLISHED_S)
        last, now = now, read(url)
    return now


def main(options: argparse.Namespace) -> None:
    triton = options.triton
    metrics_url = options.metrics_url or f"http://{options.url.rpartition(':')[0]}:8002/metrics"
    before = settled(metrics_url)  # requests of others may not have been counted yet
    ids = np.arange(11)[np.newaxis]
    tokens = triton.InferInput("input_ids", ids.shape, "INT64")
    tokens.set_data_from_numpy(ids)
    with triton.InferenceServerClient(options.url) as client:
        client.infer(MODEL, [tokens])
    after = settled(metrics_url, before)
    changes = {name: value - before.get(name, 0) for name, value in after.items()}
    if not any(changes.values()):
        sys.exit(f"{metrics_url} counted nothing of it: it is another server's; give --metrics-url")
    for name, change in sorted(changes.items()):
        if change:
            print(f"{name}: {change:+g}")


if __name__ == "__main__":
    parser = connection.parser(__doc__)
    parser.add_argument("--metrics-url", help="default: port 8002 where --url is")
    connection.run(main, parser)
