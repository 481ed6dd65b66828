"""Tensors in shared memory: the model `token_scores`, client and server on one machine.

One region holds the inputs and the outputs of several requests; only names, offsets and sizes
travel. docs/shared_memory.md says when that pays.

python client_examples/system_shared_memory.py --requests 4
"""

from __future__ import annotations

import argparse
import os
import time
from contextlib import ExitStack
from typing import Any

import numpy as np
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

import connection

REGION = f"example-{os.getpid()}"
SCORES = 4
LONGEST = 64
# Each request gets a place for its longest text and one for the scores of that, FP32.
IN_BYTES = LONGEST * 8
OUT_BYTES = LONGEST * SCORES * 4


def main(options: argparse.Namespace) -> None:
    triton = options.triton
    random = np.random.default_rng(3)
    texts = [random.integers(0, 1000, random.integers(1, LONGEST)) for _ in range(options.requests)]

    nbytes = options.requests * (IN_BYTES + OUT_BYTES)
    with ExitStack() as stack:
        region = shm.create_shared_memory_region(REGION, f"/{REGION}", nbytes, create_only=True)
        stack.callback(shm.destroy_shared_memory_region, region)
        client = stack.enter_context(triton.InferenceServerClient(options.url))
        client.register_system_shared_memory(REGION, f"/{REGION}", nbytes)
        stack.callback(unregister, client)
        for number, ids in enumerate(texts):
            at = number * (IN_BYTES + OUT_BYTES)
            shm.set_shared_memory_region(region, [ids], offset=at)
            tokens = triton.InferInput("input_ids", [1, len(ids)], "INT64")
            tokens.set_shared_memory(REGION, ids.nbytes, offset=at)
            scores = triton.InferRequestedOutput("scores")
            scores.set_shared_memory(REGION, OUT_BYTES, offset=at + IN_BYTES)
            client.infer("token_scores", [tokens], outputs=[scores])
        for number, ids in enumerate(texts):
            at = number * (IN_BYTES + OUT_BYTES) + IN_BYTES
            found = shm.get_contents_as_numpy(region, np.float32, [len(ids), SCORES], at)
            print(f"{len(ids)} tokens, best scores:", *found.argmax(axis=1)[:8])
            del found  # a view of the region, which could not be closed with it


def unregister(client: Any) -> None:
    """Have the server forget the region, which it holds for a moment after the last answer."""
    until = time.monotonic() + 5
    while True:
        try:
            client.unregister_system_shared_memory(REGION)
        except InferenceServerException as error:
            if "currently in use" not in error.message() or time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return


if __name__ == "__main__":
    parser = connection.parser(__doc__)
    parser.add_argument("--requests", type=int, default=4)
    connection.run(main, parser)
