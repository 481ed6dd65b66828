"""Inputs and outputs of a model that generates text: those of Triton's vLLM backend, and some more.

Source: triton-inference-server/vllm_backend@00ea75b, `src/model.py`.
`input_ids` (instead of `text_input`), `heartbeat`, `output_ids`, `warnings` and `description` are
ours: a JSON list of what a request says and is not kept to, and what the model says of itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["SWITCHES", "completed_for_text"]

# Each output beside `text_output`, and the input that asks for it; "" where naming it is asking.
SWITCHES: Mapping[str, str] = {
    "finish_reason": "return_finish_reason",
    "cumulative_logprob": "return_cumulative_logprob",
    "logprobs": "return_logprobs",
    "num_input_tokens": "return_num_input_tokens",
    "num_output_tokens": "return_num_output_tokens",
    "warnings": "return_warnings",
    "output_ids": "",
}

_INPUTS = {
    "text_input": ("TYPE_STRING", [1]),
    "input_ids": ("TYPE_INT64", [-1]),
    "stream": ("TYPE_BOOL", [1]),
    "sampling_parameters": ("TYPE_STRING", [1]),
    "exclude_input_in_output": ("TYPE_BOOL", [1]),
    "description": ("TYPE_STRING", [1]),
    "heartbeat": ("TYPE_BOOL", [1]),
    **{switch: ("TYPE_BOOL", [1]) for switch in SWITCHES.values() if switch},
}
_OUTPUTS = {
    "text_output": ("TYPE_STRING", [-1]),
    "finish_reason": ("TYPE_STRING", [-1]),
    "cumulative_logprob": ("TYPE_FP32", [-1]),
    "logprobs": ("TYPE_STRING", [-1]),
    "num_input_tokens": ("TYPE_UINT32", [1]),
    "num_output_tokens": ("TYPE_UINT32", [-1]),
    "warnings": ("TYPE_STRING", [1]),
    "output_ids": ("TYPE_INT64", [-1]),
    "description": ("TYPE_STRING", [1]),
}


def completed_for_text(document: Mapping[str, Any], _config: object = None) -> dict[str, Any]:
    """Return the host's configuration, decoupled, without batching, with all tensors.

    What it declares already stays as it is. All inputs are optional to the host, because either
    `text_input` or `input_ids` is enough.
    """
    whole = dict(document)
    whole.pop("dynamic_batching", None)  # whose sizes the host has filled in
    whole["max_batch_size"] = 0
    whole["model_transaction_policy"] = {"decoupled": True}
    inputs, outputs = list(document.get("input", [])), list(document.get("output", []))
    named = {block["name"] for block in inputs}
    inputs += [
        {"name": name, "data_type": kind, "dims": dims, "optional": True}
        for name, (kind, dims) in _INPUTS.items()
        if name not in named
    ]
    named = {block["name"] for block in outputs}
    outputs += [
        {"name": name, "data_type": kind, "dims": dims}
        for name, (kind, dims) in _OUTPUTS.items()
        if name not in named
    ]
    return {**whole, "input": inputs, "output": outputs}
