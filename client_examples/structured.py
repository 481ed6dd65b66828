"""Answers in a given form: a choice, a regular expression, a JSON schema; always one that parses.

The form is a sampling parameter: every token is drawn from those alone that keep to it, so that
even a model that knows nothing of JSON answers in it. What it says in it is another matter.

python client_examples/structured.py
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import tritonclient.grpc as grpcclient

import connection
from generate import generate

ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "count": {"type": "integer", "minimum": 1, "maximum": 99},
        "colour": {"enum": ["red", "green", "blue"]},
    },
    "required": ["name", "count", "colour"],
    "additionalProperties": False,
}
FORMS: dict[str, Any] = {
    "guided_choice": ["yes", "no", "perhaps"],
    "guided_regex": "[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "guided_json": ITEM,
}


def main(options: argparse.Namespace) -> None:
    with grpcclient.InferenceServerClient(options.url) as client:
        client.get_model_metadata(options.model)  # refused here if it is not served
    for name, form in FORMS.items():
        sampling = {name: form, "max_tokens": 100, "temperature": 1.0, "seed": options.seed}
        (text,) = generate(options.url, options.model, [options.prompt], sampling)
        print(f"{name}: {text}")
        if name == "guided_json":
            print(f"  parsed: {json.loads(text)}")


if __name__ == "__main__":
    parser = connection.parser(__doc__, protocols=["grpc"])  # several answers need a stream
    parser.add_argument("prompt", nargs="?", default="once upon a time")
    parser.add_argument("--model", default="tiny_writer")
    parser.add_argument("--seed", type=int, default=1)
    connection.run(main, parser)
