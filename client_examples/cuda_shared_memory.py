"""Tensors in the memory of a GPU that client and server share: the model `add_sub`.

The server copies them to wherever the model runs, so this also works with a model on the CPU.

python client_examples/cuda_shared_memory.py --device 0
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from typing import Any

import numpy as np
from tritonclient.utils import InferenceServerException

import connection

REGIONS = {name: f"example-{os.getpid()}-{name}" for name in ("inputs", "sum", "difference")}
OUTPUTS = {"sum": "OUTPUT0", "difference": "OUTPUT1"}
SHAPE = (1, 16)


def main(options: argparse.Namespace) -> None:
    triton = options.triton
    try:  # pip install 'tritonclient[cuda]'
        shm = importlib.import_module("tritonclient.utils.cuda_shared_memory")
    except (ImportError, RuntimeError) as error:
        sys.exit(f"no CUDA shared memory here: {error}")

    left = np.arange(16, dtype=np.float32).reshape(SHAPE)
    right = np.ones(SHAPE, np.float32)
    # Both inputs lie in one region; reading begins at a region's start, so each output has its own.
    sizes = {"inputs": 2 * left.nbytes, "sum": left.nbytes, "difference": left.nbytes}
    handles = {}
    try:
        for name, nbytes in sizes.items():
            handles[name] = shm.create_shared_memory_region(REGIONS[name], nbytes, options.device)
    except shm.CudaSharedMemoryException as error:
        sys.exit(f"no CUDA shared memory here: {error}: {error.__cause__}")
    shm.set_shared_memory_region(handles["inputs"], [left, right])

    with triton.InferenceServerClient(options.url) as client:
        for name, handle in handles.items():
            raw = shm.get_raw_handle(handle)
            client.register_cuda_shared_memory(REGIONS[name], raw, options.device, sizes[name])
        try:
            inputs = [triton.InferInput(name, SHAPE, "FP32") for name in ("INPUT0", "INPUT1")]
            inputs[0].set_shared_memory(REGIONS["inputs"], left.nbytes)
            inputs[1].set_shared_memory(REGIONS["inputs"], right.nbytes, offset=left.nbytes)
            outputs = [triton.InferRequestedOutput(name) for name in OUTPUTS.values()]
            for name, output in zip(OUTPUTS, outputs, strict=True):
                output.set_shared_memory(REGIONS[name], sizes[name])
            client.infer("add_sub", inputs, outputs=outputs)
            for name in OUTPUTS:
                print(f"{name:10}", shm.get_contents_as_numpy(handles[name], np.float32, SHAPE)[0])
        finally:
            for name, handle in handles.items():
                unregister(client, REGIONS[name])
                shm.destroy_shared_memory_region(handle)


def unregister(client: Any, region: str) -> None:
    """Have the server forget a region, which it holds for a moment after the last answer."""
    until = time.monotonic() + 5
    while True:
        try:
            client.unregister_cuda_shared_memory(region)
        except InferenceServerException as error:
            if "currently in use" not in error.message() or time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return


if __name__ == "__main__":
    parser = connection.parser(__doc__)
    parser.add_argument("--device", type=int, default=0, help="the GPU's number")
    connection.run(main, parser)
