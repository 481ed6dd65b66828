"""What the backend counted, from the host's own `/metrics`: one request, and what it changed.

python client_examples/metrics.py --metrics-url http://localhost:8002/metrics
"""

from __future__ import annotations

import argparse
import importlib
import time
import urllib.request

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

PORTS = {"grpc": "localhost:8001", "http": "localhost:8000"}
MODEL = "mean_embedding"
# The backend hands its sums to the host four times a second.
PUBLISHED_S = 0.5


def read(url: str) -> dict[str, float]:
    """Return the backend's counters and gauges of the model, by name and bucket."""
    with urllib.request.urlopen(url) as page:  # noqa: S310 - the address that the user gave
        families = list(text_string_to_metric_families(page.read().decode()))
    return {
        f"{sample.name} {sample.labels.get('bucket', '')}".strip(): sample.value
        for family in families
        for sample in family.samples
        if sample.name.startswith("ge_") and sample.labels["model"] == MODEL
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", choices=PORTS, default="grpc")
    parser.add_argument("--url", help="host:port (default: localhost, the protocol's usual port)")
    parser.add_argument("--metrics-url", default="http://localhost:8002/metrics")
    options = parser.parse_args()
    triton = importlib.import_module(f"tritonclient.{options.protocol}")

    before = read(options.metrics_url)
    ids = np.arange(11)[np.newaxis]
    tokens = triton.InferInput("input_ids", ids.shape, "INT64")
    tokens.set_data_from_numpy(ids)
    with triton.InferenceServerClient(options.url or PORTS[options.protocol]) as client:
        client.infer(MODEL, [tokens])
    time.sleep(PUBLISHED_S)
    for name, value in sorted(read(options.metrics_url).items()):
        if value != before.get(name, 0.0):
            print(f"{name}: +{value - before.get(name, 0.0):g}")


if __name__ == "__main__":
    main()
