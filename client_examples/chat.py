"""A chat with a model that the server serves: your lines in, its answers token by token.

The chat template is the client's: it is read from the checkpoint's folder, the one that the model's
version folder holds. Without a terminal it answers `--say` and ends.

python client_examples/chat.py --model smollm2 --checkpoint models/smollm2/1 --say "Good morning"
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import jinja2
import jinja2.sandbox
import numpy as np
import tritonclient.grpc as grpcclient

Message = dict[str, str]


def template_of(checkpoint: Path) -> tuple[jinja2.Template, dict[str, Any]]:
    """Return a checkpoint's chat template and the special tokens that it may name."""
    config = json.loads((checkpoint / "tokenizer_config.json").read_text())
    beside = checkpoint / "chat_template.jinja"
    text = beside.read_text() if beside.is_file() else config["chat_template"]
    # A template comes with a checkpoint: it is run in a sandbox.
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    names = {key: value for key, value in config.items() if key.endswith("_token")}
    return environment.from_string(text), names


def answer(url: str, model: str, prompt: str, sampling: dict[str, Any]) -> Iterator[str]:
    """Yield the answer to a prompt, piece by piece."""
    pieces: SimpleQueue[tuple[grpcclient.InferResult, Exception | None]] = SimpleQueue()
    tensors = {
        "text_input": np.array([prompt.encode()], object),
        "stream": np.array([True]),
        "sampling_parameters": np.array([json.dumps(sampling).encode()], object),
    }
    inputs = []
    for name, value in tensors.items():
        inputs.append(grpcclient.InferInput(name, [1], "BOOL" if value.dtype == bool else "BYTES"))
        inputs[-1].set_data_from_numpy(value)
    with grpcclient.InferenceServerClient(url) as client:
        client.start_stream(lambda result, error: pieces.put((result, error)))
        client.async_stream_infer(model, inputs, enable_empty_final_response=True)
        final = False
        while not final:
            result, error = pieces.get(timeout=300)
            if error is not None:
                raise error
            final = result.get_response().parameters["triton_final_response"].bool_param
            if (text := result.as_numpy("text_output")) is not None:
                yield text[0].decode()
        client.stop_stream()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8001", help="host:port of gRPC")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder with the template")
    parser.add_argument("--say", action="append", help="say this instead of asking; repeatable")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.2)
    options = parser.parse_args()
    template, names = template_of(options.checkpoint)
    sampling = {"max_tokens": options.max_tokens, "temperature": options.temperature}
    said: Iterator[str] = iter(options.say) if options.say else iter(lambda: input("> "), "")
    messages: list[Message] = []
    try:
        for line in said:
            messages.append({"role": "user", "content": line})
            prompt = template.render(messages=messages, add_generation_prompt=True, **names)
            text = ""
            for piece in answer(options.url, options.model, prompt, sampling):
                print(piece, end="", flush=True)
                text += piece
            print()
            messages.append({"role": "assistant", "content": text})
    except (EOFError, KeyboardInterrupt):
        sys.exit(0)


if __name__ == "__main__":
    main()
