"""One request, one answer: the model `add_sub` of model_repository.

python client_examples/simple_infer.py --protocol http
"""

from __future__ import annotations

import argparse

import numpy as np

import connection


def main(options: argparse.Namespace) -> None:
    triton = options.triton
    left = np.arange(16, dtype=np.float32).reshape(1, 16)
    right = np.ones((1, 16), np.float32)
    inputs = [triton.InferInput("INPUT0", left.shape, "FP32")]
    inputs[0].set_data_from_numpy(left)
    inputs.append(triton.InferInput("INPUT1", right.shape, "FP32"))
    inputs[1].set_data_from_numpy(right)

    # Closed at the end: an HTTP connection left open would hold up the server's shutdown.
    with triton.InferenceServerClient(options.url) as client:
        result = client.infer("add_sub", inputs)
    print("sum       ", result.as_numpy("OUTPUT0")[0])
    print("difference", result.as_numpy("OUTPUT1")[0])


if __name__ == "__main__":
    connection.run(main, connection.parser(__doc__))
