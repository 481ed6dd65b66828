"""Texts in, labels out: the ensemble `text_classifier` tokenises, encodes and scores.

The names of the labels are a file on the server; asking for classes brings them with the scores.
One request is sent per text, all at once, as from many clients.

python client_examples/text_classifier.py --protocol http "Rain is expected" "She scored two goals"
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import connection

TEXTS = (
    "The goalkeeper won the match",
    "More sugar and lemon in the soup",
    "Fog",
    "A cold wind and thunder tomorrow",
    "Two eggs",
    "The young players scored two goals in the second half of the final",
)


def classify(triton: Any, url: str, text: str) -> tuple[str, float]:
    """Return the best label of a text, and its score."""
    column = np.array([[text.encode()]], object)
    given = triton.InferInput("text", column.shape, "BYTES")
    given.set_data_from_numpy(column)
    wanted = triton.InferRequestedOutput("scores", class_count=1)
    with triton.InferenceServerClient(url) as client:
        result = client.infer("text_classifier", [given], outputs=[wanted])
    # A class is `score:index:label`.
    score, _, label = result.as_numpy("scores")[0, 0].decode().split(":", 2)
    return label, float(score)


def main(options: argparse.Namespace) -> None:
    triton = options.triton
    with ThreadPoolExecutor(len(options.texts)) as threads:
        found = list(threads.map(lambda text: classify(triton, options.url, text), options.texts))
    for text, (label, score) in zip(options.texts, found, strict=True):
        print(f"{label} ({score:.2f}): {text}")


if __name__ == "__main__":
    parser = connection.parser(__doc__)
    parser.add_argument("texts", nargs="*", default=TEXTS)
    connection.run(main, parser)
