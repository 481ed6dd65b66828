"""Spread requests over several servers with nothing in between: gRPC's own `round_robin`.

python client_examples/round_robin.py --url 10.0.0.1:8001,10.0.0.2:8001
In Kubernetes the headless Service has them all: --url dns:///ge-npu-each:8001
"""

from __future__ import annotations

import argparse
import json

import numpy as np
import tritonclient.grpc as grpcclient

import connection

# A server that is being stopped refuses what it has not begun: first as UNAVAILABLE, then, while it
# unloads, as NOT_FOUND (seen on 2.51; it takes some 3 s); what it has only just taken may end as
# CANCELLED (seen once). Another server gets it then.
SERVICE = {
    "loadBalancingConfig": [{"round_robin": {}}],
    "methodConfig": [
        {
            "name": [{"service": "inference.GRPCInferenceService"}],
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "0.4s",
                "maxBackoff": "2s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE", "NOT_FOUND", "CANCELLED"],
            },
        }
    ],
}


def connect(servers: str) -> grpcclient.InferenceServerClient:
    """Return a client of all of them: addresses with commas between, or a name such as `dns:///`."""
    options = [("grpc.service_config", json.dumps(SERVICE))]
    several = "," in servers and "/" not in servers
    target = f"ipv4:{servers}" if several else servers
    return grpcclient.InferenceServerClient(target, channel_args=options)


def main(options: argparse.Namespace) -> None:
    left, right = np.arange(16, dtype=np.float32).reshape(1, 16), np.ones((1, 16), np.float32)
    inputs = [grpcclient.InferInput(name, [1, 16], "FP32") for name in ("INPUT0", "INPUT1")]
    for given, array in zip(inputs, (left, right), strict=True):
        given.set_data_from_numpy(array)
    with connect(options.url) as client:
        sums = [client.infer("add_sub", inputs).as_numpy("OUTPUT0") for _ in range(10)]
    print(f"{len(sums)} answers, all {'equal' if len(np.unique(sums, axis=0)) == 1 else 'unequal'}")


if __name__ == "__main__":
    connection.run(main, connection.parser(__doc__, protocols=("grpc",)))
