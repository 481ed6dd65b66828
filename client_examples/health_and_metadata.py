"""What the server and a model say about themselves.

python client_examples/health_and_metadata.py --model lengths_sum
"""

from __future__ import annotations

import argparse

import connection


def main(options: argparse.Namespace) -> None:
    triton = options.triton
    # gRPC answers with messages unless it is asked for JSON; HTTP always answers with JSON.
    as_json = {"as_json": True} if options.protocol == "grpc" else {}

    with triton.InferenceServerClient(options.url) as client:
        print("server live ", client.is_server_live())
        print("server ready", client.is_server_ready())
        print("model ready ", client.is_model_ready(options.model))
        metadata = client.get_model_metadata(options.model, **as_json)
        config = client.get_model_config(options.model, **as_json)
    for kind in ("inputs", "outputs"):
        for tensor in metadata[kind]:
            # The batch axis comes first; -1 is any size.
            sizes = [int(size) for size in tensor["shape"]]
            print(f"{kind[:-1]:6} {tensor['name']}: {tensor['datatype']} {sizes}")
    print("parameters:")
    for key, value in config.get("config", config).get("parameters", {}).items():
        print(f"  {key} = {value['string_value']}")


if __name__ == "__main__":
    parser = connection.parser(__doc__)
    parser.add_argument("--model", default="mean_embedding")
    connection.run(main, parser)
