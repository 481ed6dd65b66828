"""Load, change, reload and unload a model while the server runs: the model `token_scores`.

Only a server that is told so lets its clients do that, since a load may bring code along: with
`--model-control-mode=explicit --load-model=*`, as `make serve` does; behind `--` of `ge-backend
serve`.

python client_examples/model_control.py
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
from tritonclient.utils import InferenceServerException

import connection

MODEL = "token_scores"


def answer(triton: Any, client: Any, length: int) -> str:
    """Return what comes of a request with this many tokens."""
    tokens = triton.InferInput("input_ids", [1, length], "INT64")
    tokens.set_data_from_numpy(np.arange(length)[np.newaxis])
    try:
        scores = client.infer(MODEL, [tokens]).as_numpy("scores")
    except InferenceServerException as error:
        return f"refused: {error.message()}"
    return f"scores of shape {scores.shape}"


def main(options: argparse.Namespace) -> None:
    triton = options.triton
    # gRPC answers with messages unless it is asked for JSON; HTTP always answers with JSON.
    as_json = {"as_json": True} if options.protocol == "grpc" else {}

    with triton.InferenceServerClient(options.url) as client:
        client.load_model(MODEL)
        index = client.get_model_repository_index(**as_json)
        for model in index["models"] if as_json else index:
            if model["name"] == MODEL and model.get("state") == "READY":
                print("ready:", model["name"], "version", model["version"])
        print("300 tokens:", answer(triton, client, 300))

        # What is given replaces the whole configuration, so begin with the one that is served.
        # The model goes on serving meanwhile, and requests in flight end on the old one.
        config = client.get_model_config(MODEL, **as_json)
        config = config["config"] if as_json else config
        config["parameters"]["buckets.sequence"] = {"string_value": "8,32,128,512"}
        client.load_model(MODEL, config=json.dumps(config))
        print("with a larger bucket:", answer(triton, client, 300))

        # Unloading forgets what was given: a load after it goes by the file again.
        client.unload_model(MODEL)
        print("unloaded:", answer(triton, client, 300))
        client.load_model(MODEL)
        print("loaded again:", answer(triton, client, 300))


if __name__ == "__main__":
    connection.run(main, connection.parser(__doc__))
