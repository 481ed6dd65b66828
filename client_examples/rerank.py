"""Documents in the order of their relevance, by the API that Jina, Cohere and vLLM share.

The server's OpenAI front answers it (docs/openai.md): `make serve` has it on port 9000. So the
clients of these services do, too, such as cohere.ClientV2("none", base_url="http://localhost:9000").

python client_examples/rerank.py "rain tomorrow" "The goalkeeper won" "Heavy rain is expected"
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import sys
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import connection

QUERY = "heavy rain and wind"
DOCUMENTS = (
    "The chef serves grilled fish with lemon",
    "The storm brought rain, thunder and wind",
    "The young players scored two goals in the second half of the final",
    "Heavy rain is expected tomorrow",
)


def rerank(url: str, model: str, query: str, documents: Sequence[str]) -> list[dict[str, Any]]:
    """Return index, score and document of each, the most relevant first."""
    asked = {"model": model, "query": query, "documents": documents}
    headers = {"content-type": "application/json"}
    with contextlib.closing(http.client.HTTPConnection(url)) as client:
        client.request("POST", "/v1/rerank", json.dumps(asked), headers)
        answer = client.getresponse()
        said = json.loads(answer.read())
    if answer.status != HTTPStatus.OK:
        sys.exit(f"{said['error']['message']}; `make serve` serves text_ranker")
    results: list[dict[str, Any]] = said["results"]
    return results


def main(options: argparse.Namespace) -> None:
    for result in rerank(options.url, options.model, options.query, options.documents):
        print(f"{result['relevance_score']:.2f}: {result['document']['text']}")


if __name__ == "__main__":
    parser = connection.parser(__doc__, protocols=["openai"])
    parser.add_argument("query", nargs="?", default=QUERY)
    parser.add_argument("documents", nargs="*", default=DOCUMENTS)
    parser.add_argument("--model", default="text_ranker")
    connection.run(main, parser)
