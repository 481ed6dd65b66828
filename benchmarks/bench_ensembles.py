"""Sending images as files against sending them as float tensors, on the real server.

The same photo-sized JPEG files are classified in two ways that take turns: the client sends the
file and an ensemble of the host preprocesses and classifies it, or it sends an FP32 tensor that was
made beforehand. The table has the bytes of a request and CPU time on both sides; above it stands
what making the tensor takes the client, by the same code.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.harness import compare
from benchmarks.harness.pool import Pool
from benchmarks.harness.requests import Array, asked, connect, http_request
from benchmarks.harness.turns import System, fastest_ms
from benchmarks.photo_models import ENSEMBLE, NETWORK, PREPROCESS, photos, write_repository
from ge_backend.device.base import Graph, GraphSource, open_device

__all__ = ["SYSTEMS", "main", "scenario"]

SYSTEMS = (
    System(name="files", model=ENSEMBLE, ours=True),
    System(name="tensors", model=NETWORK),
)
TRAFFIC = "photos"
TOLERANCE = 1e-4


def main() -> None:
    """Run it and print the table."""
    parser = compare.parser("bench_ensembles", __doc__, [1, 16])
    parser.add_argument("--images", type=int, default=16, help="different ones")
    options = parser.parse_args(sys.argv[1:])
    compare.run(lambda folder: scenario(folder, options.images), options)


def scenario(folder: Path, images: int) -> compare.Scenario:
    """Write the models, say what a tensor takes to make, and return the comparison."""
    write_repository(folder / "models")
    files = photos(images)
    source = GraphSource.of(folder / "models" / PREPROCESS / "1" / "image.json")
    graph = open_device("cpu").load(source)
    found = fastest_ms({"tensor": lambda: _pixels(graph, files[0])}, 20)
    print(f"making a tensor of a file takes the client {found['tensor']:.1f} ms at best")
    return compare.Scenario(
        name="ensembles",
        repository=folder / "models",
        systems=SYSTEMS,
        pools=lambda address: _pools(address, files, [_pixels(graph, file) for file in files]),
        traffic=[TRAFFIC],
    )


def _pixels(graph: Graph, file: bytes) -> Array:
    """Return what preprocessing makes of one file: FP32 [1, 3, height, width]."""
    return graph.run({"image": np.array([[file]], object)}, {}, exclusive=False)["pixels"]


def _pools(address: str, files: Sequence[bytes], tensors: Sequence[Array]) -> Mapping[str, Pool]:
    """Return both ways' requests; every answer has to be what the network says of the tensor."""
    sent = {
        ENSEMBLE: [http_request(ENSEMBLE, {"image": [file]}, ["scores"]) for file in files],
        NETWORK: [http_request(NETWORK, {"pixels": pixels}, ["scores"]) for pixels in tensors],
    }
    with connect(address) as sock:
        answers = {
            at: asked(sock, request)["scores"].reshape(-1)
            for at, request in enumerate(sent[NETWORK])
        }
    return {
        f"{model}/{TRAFFIC}": Pool(
            scripts=tuple((request,) for request in requests),
            answers=answers,
            tolerance=TOLERANCE,
        )
        for model, requests in sent.items()
    }


if __name__ == "__main__":
    main()
