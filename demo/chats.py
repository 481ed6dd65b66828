"""The demo's chats: a real language model answers several people at once, token by token."""

from __future__ import annotations

import json
import queue
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2.sandbox
import numpy as np
import tritonclient.grpc as grpcclient
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from demo.chat_model import FILES

__all__ = ["MODEL", "Chat", "chat", "chats_table", "figures_line", "write_chat_model"]

MODEL = "smollm2"
QUESTIONS = (
    "What is the capital of France? Answer in one sentence.",
    "Name three rivers.",
    "Why is the sky blue?",
    "Write a very short poem about rain.",
)
MAX_TOKENS = 48
WAIT_S = 180.0
_CONFIG = """\
# A version folder that holds a Hugging Face checkpoint needs no more than this line.
backend: "ge"
"""


@dataclass(slots=True)
class Chat:
    """One question and what has come of its answer; `stamps` has a time for each token."""

    question: str
    began_s: float
    answer: str = ""
    stamps: list[float] = field(default_factory=list)


def write_chat_model(root: Path, checkpoint: Path) -> None:
    """Write the model's folder in the repository `root`; the checkpoint's files are linked."""
    version = root / MODEL / "1"
    version.mkdir(parents=True)
    for name in FILES:
        (version / name).symlink_to((checkpoint / name).resolve())
    (root / MODEL / "config.pbtxt").write_text(_CONFIG)


def chat(url: str, checkpoint: Path, console: Console) -> list[Chat]:
    """Ask all questions at once and show the answers as they come.

    Raises:
        tritonclient.utils.InferenceServerException: the server refused one.
    """
    answers: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()
    prompts = _prompts(checkpoint)
    with grpcclient.InferenceServerClient(url) as client, Live(console=console) as live:
        client.start_stream(lambda result, error: answers.put((result, error)))
        chats = []
        for number, prompt in enumerate(prompts):
            chats.append(Chat(QUESTIONS[number], time.monotonic()))
            inputs = _inputs(prompt)
            client.async_stream_infer(
                MODEL, inputs, request_id=str(number), enable_empty_final_response=True
            )
        left = len(chats)
        while left:
            result, error = answers.get(timeout=WAIT_S)
            if error is not None:
                raise error
            response = result.get_response()
            _note(chats[int(response.id)], result)
            left -= response.parameters["triton_final_response"].bool_param
            live.update(chats_table(chats))
        client.stop_stream()
    return chats


def chats_table(chats: Sequence[Chat]) -> Table:
    """Return the questions and what there is of the answers."""
    table = Table(show_header=False, padding=(0, 1))
    table.add_column(max_width=30, style="bold")
    table.add_column()
    for each in chats:
        table.add_row(Text(each.question), Text(" ".join(each.answer.split())))
    return table


def figures_line(chats: Sequence[Chat]) -> str:
    """Return tokens per second, time to the first token, time from token to token."""
    began = min(each.began_s for each in chats)
    ended = max(each.stamps[-1] for each in chats)
    tokens = sum(len(each.stamps) for each in chats)
    first = statistics.median(each.stamps[0] - each.began_s for each in chats)
    gaps = [b - a for each in chats for a, b in zip(each.stamps, each.stamps[1:], strict=False)]
    return (
        f"{len(chats)} chats at once: {tokens / (ended - began):.0f} tokens per second, first "
        f"token after {1000 * first:.0f} ms, then one every {1000 * statistics.median(gaps):.0f} ms"
    )


def _note(each: Chat, result: Any) -> None:
    if (counts := result.as_numpy("num_output_tokens")) is not None:
        each.stamps += [time.monotonic()] * int(counts[0])
        each.answer += result.as_numpy("text_output")[0].decode()


def _prompts(checkpoint: Path) -> list[str]:
    """Return the questions in the form that the model was trained on."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((checkpoint / "chat_template.jinja").read_text())
    return [
        template.render(
            messages=[{"role": "user", "content": question}], add_generation_prompt=True
        )
        for question in QUESTIONS
    ]


def _inputs(prompt: str) -> list[Any]:
    sampling = {"max_tokens": MAX_TOKENS, "temperature": 0.0}
    values = {
        "text_input": np.array([prompt.encode()], object),
        "stream": np.array([True]),
        "return_num_output_tokens": np.array([True]),
        "sampling_parameters": np.array([json.dumps(sampling).encode()], object),
    }
    tensors = []
    for name, value in values.items():
        kind = "BOOL" if value.dtype == bool else "BYTES"
        tensors.append(grpcclient.InferInput(name, [1], kind))
        tensors[-1].set_data_from_numpy(value)
    return tensors
