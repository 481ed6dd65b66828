"""Between the host's requests for text and ours: the tensors of Triton's vLLM backend.

Clients of that backend work unchanged. Source of names, types and of what is sent when:
triton-inference-server/vllm_backend@11c4e0f `src/utils/request.py`. Those that are ours
are `input_ids` in place of `text_input`, `heartbeat`, `output_ids`, `warnings` and `description`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from ge_backend.errors import InvalidRequest
from ge_backend.host.room import Room
from ge_text.protocol import Delta, Submit
from ge_text.stub.tensors import SWITCHES

__all__ = ["TextRequest", "read_text_request", "write_text_response"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRequest:
    """What one request asks for, and how it is to be answered.

    Attributes:
        prompt: what goes to the executor.
        stream: every delta is a response; else there is exactly one.
        prepend: the prompt's text stands before the answer's.
        wanted: the outputs that the response is to have, by name.
        parameters: the response says in its parameters what became of the request.
        adapter: the name of the one that the request asks for; "": of none.
        described: the description that the prompt goes by; None: it goes by none.
        heartbeat: a response without outputs shows now and then that this stub lives.
    """

    prompt: Submit
    stream: bool
    prepend: bool
    wanted: frozenset[str]
    parameters: bool = False
    adapter: str = ""
    described: str | None = None
    heartbeat: bool = False


def read_text_request(request: Any, *, parameters: bool = False) -> TextRequest:
    """Return the host's request as ours.

    Args:
        request: the host's.
        parameters: as in `TextRequest`.

    Raises:
        InvalidRequest: its tensors contradict each other or cannot be read.
    """
    tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
    stream = _switch(tensors, "stream")
    exclude = _switch(tensors, "exclude_input_in_output", default=stream)
    if stream and not exclude:
        raise InvalidRequest(
            "exclude_input_in_output is false and stream is true: a stream holds new text only; "
            "leave one of them out"
        )
    text, ids = _prompt(tensors)
    wanted = {
        name
        for name in request.requested_output_names()
        if not (switch := SWITCHES.get(name)) or _switch(tensors, switch)
    }
    prompt = Submit(
        text=text or "",
        ids=ids,
        parameters=_parameters(request, tensors),
        timeout_s=request.timeout() / 1e6,
        cumulative="cumulative_logprob" in wanted,
    )
    return TextRequest(
        prompt=prompt,
        stream=stream,
        prepend=not exclude and text is not None,
        wanted=frozenset(wanted),
        parameters=parameters,
        adapter=str((_object(prompt.parameters) or {}).get("lora_name", "")) if parameters else "",
        described=_text(tensors, "description") if "description" in tensors else None,
        heartbeat=_switch(tensors, "heartbeat"),
    )


def write_text_response(
    asked: TextRequest, deltas: Sequence[Delta], room: Room, *, first: bool
) -> Any:
    """Return the response that carries what is new, one element per sample of the request.

    It has nothing that the client has not named. A sender drops such tensors without holding
    Python's lock, which ended stubs of Python 3.12 and races in older ones. Source: python_backend
    r24.10 src/response_sender.cc, Send; seen on 2.51.

    Raises:
        OutOfMemory: shared memory has no room for it.
    """
    if first and asked.prepend:
        deltas = [replace(delta, text=asked.prompt.text + delta.text) for delta in deltas]
    wanted = {name: write(deltas) for name, write in WRITERS.items() if name in asked.wanted}
    room.check(wanted.values())
    said = {"parameters": _response_parameters(asked, deltas)} if asked.parameters else {}
    return pb_utils.InferenceResponse(
        output_tensors=[pb_utils.Tensor(name, array) for name, array in wanted.items()], **said
    )


def _response_parameters(asked: TextRequest, deltas: Sequence[Delta]) -> dict[str, str | int]:
    """Return what became of a request, by the names of the outputs; what is one is not said again.

    A response has one value of each: of several samples the reasons have commas between them, and
    their tokens are added up.
    """
    said: dict[str, str | int] = {
        "finish_reason": ",".join(delta.finish or "None" for delta in deltas),
        "num_input_tokens": deltas[0].prompt_tokens,
        "num_output_tokens": sum(len(delta.ids) for delta in deltas),
    }
    if deltas[0].found_tokens >= 0:
        said["prefix_found_tokens"] = deltas[0].found_tokens
    if asked.adapter:
        said["lora_name"] = asked.adapter
    return {name: value for name, value in said.items() if name not in asked.wanted}


def _prompt(tensors: Mapping[str, Any]) -> tuple[str | None, tuple[int, ...]]:
    """Return the prompt's text, or its token ids where the client has them."""
    given = sorted({"text_input", "input_ids"} & tensors.keys())
    if len(given) != 1:
        raise InvalidRequest(
            f"a request needs either text_input or input_ids, got {' and '.join(given) or 'none'}"
        )
    if "input_ids" in tensors:
        ids = tuple(map(int, tensors["input_ids"].reshape(-1)))
        if not ids:  # to whom it goes, none would say that the prompt is a text
            raise InvalidRequest("input_ids has no token; a prompt has to have at least one")
        return None, ids
    return _text(tensors, "text_input"), ()


def _parameters(request: Any, tensors: Mapping[str, Any]) -> str:
    """Return the sampling parameters as JSON: those of the request, and over them the tensor's.

    The vLLM backend ignores the former beside the latter; its own client sends the same ones both
    ways (`samples/client.py`).
    """
    try:
        beside = str(request.parameters() or "{}")
    except UnicodeDecodeError as error:  # the host passes on what came, a body's `id` among it
        raise InvalidRequest(f"a parameter of the request is not UTF-8: {error}") from error
    if "sampling_parameters" not in tensors:
        return beside
    text = _text(tensors, "sampling_parameters")
    others, own = json.loads(beside), _object(text)
    return text if own is None or not others else json.dumps({**others, **own})


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # the executor says what is wrong with it
        return None
    return value if isinstance(value, dict) else None


def _text(tensors: Mapping[str, Any], name: str) -> str:
    flat = tensors[name].reshape(-1)
    if len(flat) != 1:
        raise InvalidRequest(f"{name} holds {len(flat)} texts; a request has one")
    value = flat[0]
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{name} is not UTF-8: {error}") from error


def _switch(tensors: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    if name not in tensors:
        return default
    flat = tensors[name].reshape(-1)
    if len(flat) != 1:
        raise InvalidRequest(f"{name} holds {len(flat)} values; a request has one")
    return bool(flat[0])


def _strings(texts: Sequence[str]) -> Any:
    return np.array([text.encode() for text in texts], dtype=np.object_)


# The outputs of a response, in their order, and what of deltas each is.
WRITERS: Mapping[str, Callable[[Sequence[Delta]], Any]] = {
    "text_output": lambda deltas: _strings([delta.text for delta in deltas]),
    "finish_reason": lambda deltas: _strings([delta.finish or "None" for delta in deltas]),
    "cumulative_logprob": lambda deltas: np.array([d.cumulative for d in deltas], np.float32),
    "logprobs": lambda deltas: _strings(
        [f"[{','.join(d.logprobs)}]" if d.logprobs else "null" for d in deltas]
    ),
    "num_input_tokens": lambda deltas: np.array([deltas[0].prompt_tokens], np.uint32),
    "num_output_tokens": lambda deltas: np.array([len(d.ids) for d in deltas], np.uint32),
    "output_ids": lambda deltas: np.array([n for d in deltas for n in d.ids], np.int64),
    "warnings": lambda deltas: _strings([json.dumps(deltas[0].warnings)]),
}
