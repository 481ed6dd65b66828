"""Text in, text out, over a gRPC stream: what the model writes after a prompt.

Several prompts are sent at once; the server takes them through the model together, and each answer
is printed when it is complete. With `--stream` the tokens of the first prompt are printed as they
come.

python client_examples/generate.py "once upon a time" "the king"
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient

import connection

PROMPTS = ("once upon a time", "the king", "the sea was")


def inputs_of(
    prompt: str, *, stream: bool, sampling: dict[str, Any]
) -> list[grpcclient.InferInput]:
    """Return the tensors of a request: those of Triton's vLLM backend."""
    values = {
        "text_input": np.array([prompt.encode()], object),
        "stream": np.array([stream]),
        "exclude_input_in_output": np.array([True]),
        "sampling_parameters": np.array([json.dumps(sampling).encode()], object),
    }
    tensors = []
    for name, value in values.items():
        datatype = "BOOL" if value.dtype == bool else "BYTES"
        tensors.append(grpcclient.InferInput(name, [1], datatype))
        tensors[-1].set_data_from_numpy(value)
    return tensors


def generate(url: str, model: str, prompts: Sequence[str], sampling: dict[str, Any]) -> list[str]:
    """Return what the model writes after each prompt; all are under way at once."""
    answers: SimpleQueue[tuple[grpcclient.InferResult, Exception | None]] = SimpleQueue()
    texts = [""] * len(prompts)
    with grpcclient.InferenceServerClient(url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number, prompt in enumerate(prompts):
            inputs = inputs_of(prompt, stream=False, sampling=sampling)
            client.async_stream_infer(model, inputs, request_id=str(number))
        for _ in prompts:
            result, error = answers.get(timeout=300)
            if error is not None:
                raise error
            number = int(result.get_response().id)
            texts[number] = result.as_numpy("text_output")[0].decode()
        client.stop_stream()
    return texts


def stream(url: str, model: str, prompt: str, sampling: dict[str, Any]) -> Iterator[str]:
    """Yield what the model writes, piece by piece."""
    answers: SimpleQueue[tuple[grpcclient.InferResult, Exception | None]] = SimpleQueue()
    with grpcclient.InferenceServerClient(url) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        inputs = inputs_of(prompt, stream=True, sampling=sampling)
        client.async_stream_infer(model, inputs, enable_empty_final_response=True)
        final = False
        while not final:
            result, error = answers.get(timeout=300)
            if error is not None:
                raise error
            final = result.get_response().parameters["triton_final_response"].bool_param
            if (text := result.as_numpy("text_output")) is not None:
                yield text[0].decode()
        client.stop_stream()


def main(options: argparse.Namespace) -> None:
    with grpcclient.InferenceServerClient(options.url) as client:
        client.get_model_metadata(options.model)  # refused here if it is not served
    sampling = {
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "beam_width": options.beam_width,
        "lora_name": options.lora_name,
    }
    if options.stream:
        for piece in stream(options.url, options.model, options.prompts[0], sampling):
            print(piece, end="", flush=True)
        print()
        return
    texts = generate(options.url, options.model, options.prompts, sampling)
    for prompt, text in zip(options.prompts, texts, strict=True):
        print(f"{prompt!r} goes on: {text!r}")


if __name__ == "__main__":
    parser = connection.parser(__doc__, protocols=["grpc"])  # several answers need a stream
    parser.add_argument("prompts", nargs="*", default=PROMPTS)
    parser.add_argument("--model", default="tiny_writer")
    parser.add_argument("--stream", action="store_true", help="print tokens as they come")
    parser.add_argument("--max-tokens", type=int, default=100)
    parser.add_argument("--temperature", type=float, default=0.0, help="0: the likeliest token")
    parser.add_argument("--beam-width", type=int, default=1, help="search for the likeliest text")
    parser.add_argument("--lora-name", default="", help="the adapter of the model to write with")
    connection.run(main, parser)
