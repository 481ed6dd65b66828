"""A chat with a model that the server serves: your lines in, its answers token by token.

The chat template is the client's: it is read from the checkpoint's folder, and without one your
lines are the prompt as they are. It ends with an empty line, or with the input.

python client_examples/chat.py --model smollm2 --checkpoint FOLDER --say "Good morning"
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import jinja2
import jinja2.sandbox
import tritonclient.grpc as grpcclient

import connection
from generate import stream

Message = dict[str, str]


def template_of(checkpoint: Path | None) -> Callable[[list[Message]], str]:
    """Return what makes a prompt of a chat so far, as the checkpoint says."""
    if checkpoint is None:
        return lambda messages: messages[-1]["content"]
    config = json.loads((checkpoint / "tokenizer_config.json").read_text())
    beside = checkpoint / "chat_template.jinja"
    text = beside.read_text() if beside.is_file() else config["chat_template"]
    special = {key: value for key, value in config.items() if key.endswith("_token")}
    # Older files say more of a token than its text.
    names = {k: v["content"] if isinstance(v, dict) else v for k, v in special.items()}
    # A template comes with a checkpoint: it is run in a sandbox.
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(text)
    return lambda messages: template.render(messages=messages, add_generation_prompt=True, **names)


def lines(said: list[str] | None) -> Iterator[str]:
    """Yield what was said on the command line, else what is typed, until an empty line."""
    yield from said or iter(typed, "")


def typed() -> str:
    """Return what is typed; an empty line where the input ends."""
    try:
        return input("> ")
    except EOFError:
        print()
        return ""


def main(options: argparse.Namespace) -> None:
    with grpcclient.InferenceServerClient(options.url) as client:
        client.get_model_metadata(options.model)  # refused here if it is not served
    sampling = {
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "add_special_tokens": options.checkpoint is None,  # else its template writes them
    }
    prompt_of = template_of(options.checkpoint)
    messages: list[Message] = []
    for line in lines(options.say):
        messages.append({"role": "user", "content": line})
        text = ""
        for piece in stream(options.url, options.model, prompt_of(messages), sampling):
            print(piece, end="", flush=True)
            text += piece
        print()
        messages.append({"role": "assistant", "content": text})


if __name__ == "__main__":
    parser = connection.parser(__doc__, protocols=["grpc"])  # streams need gRPC
    parser.add_argument("--model", default="tiny_writer")
    parser.add_argument("--checkpoint", type=Path, help="folder that has the chat template")
    parser.add_argument("--say", action="append", help="say this instead of asking; repeatable")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.0)
    connection.run(main, parser)
