"""Texts in, embeddings out: the ensemble `text_embedding` tokenises, encodes and pools.

Prints, for each text, the most similar other one. All texts go in one request; each has a length of
its own.

python client_examples/text_embedding.py --protocol http "rain tomorrow" "the match" "heavy rain"
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import connection

TEXTS = (
    "The team won the final match",
    "Heavy rain and a cold wind",
    "The players lost the match in the second half",
    "Bread with butter and cheese",
    "Snow and cold wind in the mountains",
    "Add butter and salt to the bread",
)


def embed(triton: Any, url: str, texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """Return one embedding of unit length per text, FP32 [texts, 96]."""
    column = np.array([[text.encode()] for text in texts], object)
    given = triton.InferInput("text", column.shape, "BYTES")
    given.set_data_from_numpy(column)
    with triton.InferenceServerClient(url) as client:
        result: npt.NDArray[np.float32] = client.infer("text_embedding", [given]).as_numpy(
            "embedding"
        )
    return result


def main(options: argparse.Namespace) -> None:
    if len(options.texts) < 2:
        sys.exit("expected two texts at least, or none for the example's own")
    triton = options.triton
    embeddings = embed(triton, options.url, options.texts)
    similarity = embeddings @ embeddings.T
    np.fill_diagonal(similarity, -1.0)
    for text, row in zip(options.texts, similarity, strict=True):
        nearest = int(row.argmax())
        print(f"{text!r} is most like {options.texts[nearest]!r} ({row[nearest]:.2f})")


if __name__ == "__main__":
    parser = connection.parser(__doc__)
    parser.add_argument("texts", nargs="*", default=TEXTS, help="at least two texts, at most 16")
    connection.run(main, parser)
